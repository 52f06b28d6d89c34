// What each operator is given, and the functions that run it on the CPU and on a CUDA stream.
//
// Every matrix is a view of rows: the elements of a row are adjacent, `*_stride` is the distance of two
// rows in elements. Arguments have been checked by binding.cc; sizes may be zero only for `rows`.
#ifndef FUSED_NORM_OPERATORS_H_
#define FUSED_NORM_OPERATORS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fused_norm {

enum class DType { kFloat32, kFloat16, kBFloat16 };

// sum[r] = round(x[r] + residual[r]);  y[r] = sum[r] / sqrt(mean(sum[r]^2) + eps) * weight
struct RmsNormArgs {
  const void* x;
  const void* residual;
  const void* weight;  // [hidden]
  void* y;             // [rows, hidden], contiguous
  void* sum;           // [rows, hidden], contiguous
  int64_t x_stride;
  int64_t residual_stride;
  int64_t rows;
  int64_t hidden;
  float eps;
  DType dtype;
};

// out[r] = x[r] * gate[r] / (1 + exp(-gate[r]))
struct SwigluArgs {
  const void* x;
  const void* gate;
  void* out;  // [rows, cols], contiguous
  int64_t x_stride;
  int64_t gate_stride;
  int64_t rows;
  int64_t cols;
  DType dtype;
};

// The k largest logits of a row, largest first, and their softmax weights.
struct TopkSoftmaxArgs {
  const void* logits;
  float* weights;    // [rows, k], contiguous
  int32_t* indices;  // [rows, k], contiguous
  int64_t logits_stride;
  int64_t rows;
  int32_t experts;
  int32_t k;
  bool renormalize;
  DType dtype;
};

constexpr int32_t kMaxExperts = 1024;

void rms_norm_residual_cpu(const RmsNormArgs& args);
void swiglu_cpu(const SwigluArgs& args);
void topk_softmax_cpu(const TopkSoftmaxArgs& args);

// The device of `stream` must be the current one. Returns the status of the launch.
cudaError_t rms_norm_residual_cuda(const RmsNormArgs& args, cudaStream_t stream);
cudaError_t swiglu_cuda(const SwigluArgs& args, cudaStream_t stream);
cudaError_t topk_softmax_cuda(const TopkSoftmaxArgs& args, cudaStream_t stream);

// Calls `call` with a value of the storage type: dispatch(dtype, [&](auto zero) { using T = decltype(zero); ... }).
template <typename Float16T, typename BFloat16T, typename Call>
auto dispatch(DType dtype, Call call) {
  switch (dtype) {
    case DType::kFloat16:
      return call(Float16T{});
    case DType::kBFloat16:
      return call(BFloat16T{});
    default:
      return call(float{});
  }
}

}  // namespace fused_norm

#endif  // FUSED_NORM_OPERATORS_H_
