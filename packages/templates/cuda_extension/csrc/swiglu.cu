// SwiGLU, elementwise. A block takes a chunk of one row; a matrix without gaps counts as one long row.
#include "device.cuh"

namespace fused_norm {
// Named: nvcc would put a hash of the source's path into the names of an unnamed namespace.
namespace swiglu_detail {

constexpr int kThreads = 256;
constexpr int kPacksOfThread = 2;

__device__ __forceinline__ float silu(float value) { return value / (1.0f + expf(-value)); }

template <typename T, int V>
__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(const T* __restrict__ x_rows, int64_t x_stride, const T* __restrict__ gate_rows,
                  int64_t gate_stride, T* __restrict__ out_rows, int64_t cols, unsigned chunks) {
  const int64_t row = blockIdx.x / chunks;
  const int64_t chunk = blockIdx.x % chunks;
  const T* x = x_rows + row * x_stride;
  const T* gate = gate_rows + row * gate_stride;
  T* out = out_rows + row * cols;
#pragma unroll
  for (int i = 0; i < kPacksOfThread; ++i) {
    const int64_t col = ((chunk * kPacksOfThread + i) * kThreads + threadIdx.x) * V;
    if (col + V <= cols) {
      const Pack<T, V> xs = load<V>(x + col);
      const Pack<T, V> gates = load<V>(gate + col);
      Pack<T, V> outs;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        outs.values[j] = from_float<T>(to_float(xs.values[j]) * silu(to_float(gates.values[j])));
      }
      store<V>(out + col, outs);
    } else {
      for (int64_t tail = col; tail < cols; ++tail) {
        out[tail] = from_float<T>(to_float(x[tail]) * silu(to_float(gate[tail])));
      }
    }
  }
}

template <typename T, int V>
cudaError_t launch(const SwigluArgs& args, cudaStream_t stream) {
  const int64_t chunks = ceil_div(args.cols, static_cast<int64_t>(kThreads) * kPacksOfThread * V);
  const int64_t blocks = chunks * args.rows;
  if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
  swiglu_kernel<T, V><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<const T*>(args.x), args.x_stride, static_cast<const T*>(args.gate),
      args.gate_stride, static_cast<T*>(args.out), args.cols, static_cast<unsigned>(chunks));
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_for_alignment(const SwigluArgs& args, cudaStream_t stream) {
  constexpr int kWide = kVectorBytes / sizeof(T);
  const int64_t out_stride = args.rows == 1 ? 0 : args.cols;
  const bool wide = aligned(args.x, args.x_stride, kWide, sizeof(T)) &&
                    aligned(args.gate, args.gate_stride, kWide, sizeof(T)) &&
                    aligned(args.out, out_stride, kWide, sizeof(T));
  return wide ? launch<T, kWide>(args, stream) : launch<T, 1>(args, stream);
}

SwigluArgs joined(SwigluArgs args) {
  if (args.x_stride == args.cols && args.gate_stride == args.cols) {
    args.cols *= args.rows;
    args.rows = 1;
  }
  if (args.rows == 1) args.x_stride = args.gate_stride = 0;
  return args;
}

}  // namespace swiglu_detail

cudaError_t swiglu_cuda(const SwigluArgs& args, cudaStream_t stream) {
  using namespace swiglu_detail;
  const SwigluArgs flat = joined(args);
  return dispatch<Float16, BFloat16>(
      flat.dtype, [&](auto zero) { return launch_for_alignment<decltype(zero)>(flat, stream); });
}

}  // namespace fused_norm
