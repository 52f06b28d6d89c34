// RMSNorm of x + residual, a row in one pass.
//
// A row belongs to a warp (short rows, several to a block) or to a block. Its threads keep their part
// of the sum in registers between the two halves of the work: each input element is read once and each
// output element written once. Only rows of more than kMaxThreads * kCachedPacks vectors read the sum
// back, from the addresses that the same thread has written.
#include "device.cuh"

namespace fused_norm {
// Named: nvcc would put a hash of the source's path into the names of an unnamed namespace.
namespace rms_norm_residual_detail {

constexpr int kMaxThreads = 1024;
constexpr int kCachedPacks = 4;
constexpr int kThreadsOfShortRows = 128;
// Up to this many rows the GPU is not filled by rows alone: use more threads to a row.
constexpr int64_t kFewRows = 512;

template <typename T, int V>
__device__ __forceinline__ Pack<T, V> add(const Pack<T, V>& x, const Pack<T, V>& residual,
                                          float& squares) {
  Pack<T, V> sum;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sum.values[i] = from_float<T>(to_float(x.values[i]) + to_float(residual.values[i]));
    const float rounded = to_float(sum.values[i]);
    squares += rounded * rounded;
  }
  return sum;
}

template <typename T, int V>
__device__ __forceinline__ Pack<T, V> scaled(const Pack<T, V>& sum, const Pack<T, V>& weight,
                                             float scale) {
  Pack<T, V> y;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    y.values[i] = from_float<T>(to_float(sum.values[i]) * scale * to_float(weight.values[i]));
  }
  return y;
}

__device__ __forceinline__ float row_scale(float squares, int hidden, float eps) {
  const float total = blockDim.x == kWarp ? warp_sum(squares) : block_sum(squares);
  return rsqrtf(total / static_cast<float>(hidden) + eps);
}

// blockDim = (threads of a row, rows of a block); more than one row only where a row has one warp.
// Packs = 0 means: the row does not fit into registers.
template <typename T, int V, int Packs>
__global__ void __launch_bounds__(kMaxThreads)
    rms_norm_residual_kernel(const T* __restrict__ x_rows, int64_t x_stride,
                             const T* __restrict__ residual_rows, int64_t residual_stride,
                             const T* __restrict__ weight, T* __restrict__ y_rows, T* sum_rows,
                             int64_t rows, int hidden, float eps) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;  // a whole warp: threadIdx.y differs between warps only
  const T* x = x_rows + row * x_stride;
  const T* residual = residual_rows + row * residual_stride;
  T* sum = sum_rows + row * hidden;
  T* y = y_rows + row * hidden;
  const int first = threadIdx.x * V;
  const int step = blockDim.x * V;
  float squares = 0.0f;

  if constexpr (Packs > 0) {
    Pack<T, V> cache[Packs];
#pragma unroll
    for (int i = 0; i < Packs; ++i) {
      const int col = first + i * step;
      if (col < hidden) {
        cache[i] = add(load<V>(x + col), load<V>(residual + col), squares);
        store<V>(sum + col, cache[i]);
      }
    }
    const float scale = row_scale(squares, hidden, eps);
#pragma unroll
    for (int i = 0; i < Packs; ++i) {
      const int col = first + i * step;
      if (col < hidden) store<V>(y + col, scaled(cache[i], load<V>(weight + col), scale));
    }
  } else {
    for (int64_t col = first; col < hidden; col += step) {
      store<V>(sum + col, add(load<V>(x + col), load<V>(residual + col), squares));
    }
    const float scale = row_scale(squares, hidden, eps);
    for (int64_t col = first; col < hidden; col += step) {
      store<V>(y + col, scaled(load<V>(sum + col), load<V>(weight + col), scale));
    }
  }
}

template <typename T, int V, int Packs>
cudaError_t launch(const RmsNormArgs& args, int threads, cudaStream_t stream) {
  const int rows_of_block = threads == kWarp ? kThreadsOfShortRows / kWarp : 1;
  const dim3 block(threads, rows_of_block);
  const dim3 grid(static_cast<unsigned>(ceil_div(args.rows, rows_of_block)));
  rms_norm_residual_kernel<T, V, Packs><<<grid, block, 0, stream>>>(
      static_cast<const T*>(args.x), args.x_stride, static_cast<const T*>(args.residual),
      args.residual_stride, static_cast<const T*>(args.weight), static_cast<T*>(args.y),
      static_cast<T*>(args.sum), args.rows, static_cast<int>(args.hidden), args.eps);
  return cudaGetLastError();
}

template <typename T, int V>
cudaError_t launch_for_size(const RmsNormArgs& args, cudaStream_t stream) {
  const int64_t packs = args.hidden / V;
  const bool spread = packs <= kMaxThreads && args.rows <= kFewRows;
  if (packs > kMaxThreads * kCachedPacks) return launch<T, V, 0>(args, kMaxThreads, stream);
  const int64_t wanted = spread ? packs : ceil_div(packs, kCachedPacks);
  const int threads = static_cast<int>(ceil_div(wanted, kWarp) * kWarp);
  return spread ? launch<T, V, 1>(args, threads, stream)
                : launch<T, V, kCachedPacks>(args, threads, stream);
}

template <typename T>
bool all_aligned(const RmsNormArgs& args, int vector) {
  return args.hidden % vector == 0 && aligned(args.x, args.x_stride, vector, sizeof(T)) &&
         aligned(args.residual, args.residual_stride, vector, sizeof(T)) &&
         aligned(args.weight, 0, vector, sizeof(T)) && aligned(args.y, 0, vector, sizeof(T)) &&
         aligned(args.sum, 0, vector, sizeof(T));
}

template <typename T>
cudaError_t launch_for_alignment(const RmsNormArgs& args, cudaStream_t stream) {
  constexpr int kWide = kVectorBytes / sizeof(T);
  constexpr int kPair = 8 / sizeof(T) / 2;  // 4 bytes: two 16-bit elements, or one of fp32
  if (all_aligned<T>(args, kWide)) return launch_for_size<T, kWide>(args, stream);
  if (kPair > 1 && all_aligned<T>(args, kPair)) return launch_for_size<T, kPair>(args, stream);
  return launch_for_size<T, 1>(args, stream);
}

}  // namespace rms_norm_residual_detail

cudaError_t rms_norm_residual_cuda(const RmsNormArgs& args, cudaStream_t stream) {
  using namespace rms_norm_residual_detail;
  return dispatch<Float16, BFloat16>(
      args.dtype, [&](auto zero) { return launch_for_alignment<decltype(zero)>(args, stream); });
}

}  // namespace fused_norm
