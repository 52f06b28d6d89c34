// Vectorised access and reductions that the kernels share.
#ifndef FUSED_NORM_DEVICE_CUH_
#define FUSED_NORM_DEVICE_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "operators.h"
#include "scalar_types.h"

namespace fused_norm {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kVectorBytes = 16;  // the widest load and store that all capabilities from 8.0 have

template <typename T, int V>
struct alignas(sizeof(T) * V) Pack {
  T values[V];
};

template <int V, typename T>
__device__ __forceinline__ Pack<T, V> load(const T* address) {
  return *reinterpret_cast<const Pack<T, V>*>(address);
}

template <int V, typename T>
__device__ __forceinline__ void store(T* address, const Pack<T, V>& pack) {
  *reinterpret_cast<Pack<T, V>*>(address) = pack;
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

// The sum over all threads of a one-dimensional block, the same bits in each of them.
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float partial[kWarp];
  const int lane = threadIdx.x % kWarp;
  const int warps = blockDim.x / kWarp;
  value = warp_sum(value);
  if (lane == 0) partial[threadIdx.x / kWarp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? partial[lane] : 0.0f);
}

// True if rows that start at `address` and are `stride` elements apart all start on a vector boundary.
inline bool aligned(const void* address, int64_t stride, int vector, int element_bytes) {
  return reinterpret_cast<uintptr_t>(address) % (vector * element_bytes) == 0 && stride % vector == 0;
}

inline int64_t ceil_div(int64_t value, int64_t by) { return (value + by - 1) / by; }

}  // namespace fused_norm

#endif  // FUSED_NORM_DEVICE_CUH_
