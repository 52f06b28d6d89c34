// Top-k of the router's logits with their softmax weights; a warp to a row, all of it in registers.
//
// Each round finds the largest key with one warp reduction (redux.sync, capability 8.0) and, among the
// lanes that hold it, the lowest expert with a second one: ties go to the lower index.
#include "device.cuh"

namespace fused_norm {
// Named: nvcc would put a hash of the source's path into the names of an unnamed namespace.
namespace topk_softmax_detail {

constexpr int kRowsOfBlock = 4;

template <typename T, int PerLane>
struct Layout {
  static constexpr int kVectorElements = kVectorBytes / static_cast<int>(sizeof(T));
  static constexpr int kVector = PerLane < kVectorElements ? PerLane : kVectorElements;
  static constexpr int kLoads = PerLane / kVector;

  // The expert that a lane holds in its slot. It grows with the slot.
  static __device__ __forceinline__ int expert(int slot, int lane) {
    return (slot / kVector * kWarp + lane) * kVector + slot % kVector;
  }
};

template <typename T, int PerLane>
__device__ __forceinline__ void load_keys(const T* logits, int experts, bool wide, int lane,
                                          uint32_t (&keys)[PerLane]) {
  using L = Layout<T, PerLane>;
#pragma unroll
  for (int i = 0; i < L::kLoads; ++i) {
    const int expert = L::expert(i * L::kVector, lane);
    if (wide && expert + L::kVector <= experts) {
      const Pack<T, L::kVector> pack = load<L::kVector>(logits + expert);
#pragma unroll
      for (int j = 0; j < L::kVector; ++j) {
        keys[i * L::kVector + j] = order_key(to_float(pack.values[j]));
      }
    } else {
#pragma unroll
      for (int j = 0; j < L::kVector; ++j) {
        keys[i * L::kVector + j] =
            expert + j < experts ? order_key(to_float(logits[expert + j])) : kAbsentKey;
      }
    }
  }
}

// Takes the best expert out of the warp's keys and returns it; `key` is its key.
template <typename T, int PerLane>
__device__ __forceinline__ int take_best(uint32_t (&keys)[PerLane], int lane, uint32_t& key) {
  using L = Layout<T, PerLane>;
  uint32_t own_key = keys[0];
  int own_expert = L::expert(0, lane);
#pragma unroll
  for (int slot = 1; slot < PerLane; ++slot) {
    if (keys[slot] > own_key) {
      own_key = keys[slot];
      own_expert = L::expert(slot, lane);
    }
  }
  key = __reduce_max_sync(kAllLanes, own_key);
  const unsigned candidate = own_key == key ? static_cast<unsigned>(own_expert) : 0xffffffffu;
  const int best = static_cast<int>(__reduce_min_sync(kAllLanes, candidate));
#pragma unroll
  for (int slot = 0; slot < PerLane; ++slot) {
    if (L::expert(slot, lane) == best) keys[slot] = kAbsentKey;
  }
  return best;
}

template <int PerLane>
__device__ __forceinline__ float lane_sum_of_rest(const uint32_t (&keys)[PerLane], float largest) {
  float sum = 0.0f;
#pragma unroll
  for (int slot = 0; slot < PerLane; ++slot) {
    if (keys[slot] != kAbsentKey) sum += expf(key_value(keys[slot]) - largest);
  }
  return sum;
}

template <typename T, int PerLane>
__global__ void __launch_bounds__(kWarp * kRowsOfBlock)
    topk_softmax_kernel(const T* __restrict__ logits_rows, int64_t logits_stride, bool wide,
                        float* weights_rows, int32_t* __restrict__ indices_rows, int64_t rows,
                        int experts, int k, bool renormalize) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.y;
  if (row >= rows) return;  // a whole warp
  const int lane = threadIdx.x;
  float* weights = weights_rows + row * k;
  int32_t* indices = indices_rows + row * k;
  uint32_t keys[PerLane];
  load_keys<T>(logits_rows + row * logits_stride, experts, wide, lane, keys);

  float largest = 0.0f;
  float own_sum = 0.0f;
  float own_weight = 0.0f;
  int own_expert = 0;
  for (int rank = 0; rank < k; ++rank) {
    uint32_t key;
    const int expert = take_best<T>(keys, lane, key);
    const float logit = key_value(key);
    if (rank == 0) largest = logit;
    const float weight = expf(logit - largest);
    if (lane == rank % kWarp) {
      own_sum += weight;
      own_weight = weight;
      own_expert = expert;
    }
    // A full set of 32 results is written as it is; the division follows when the sum is known.
    if (rank % kWarp == kWarp - 1 && rank + 1 < k) {
      weights[rank + 1 - kWarp + lane] = own_weight;
      indices[rank + 1 - kWarp + lane] = own_expert;
    }
  }
  if (!renormalize) own_sum += lane_sum_of_rest(keys, largest);
  const float sum = warp_sum(own_sum);

  const int last = (k - 1) / kWarp * kWarp + lane;
  for (int rank = lane; rank + kWarp <= last; rank += kWarp) weights[rank] /= sum;
  if (last < k) {
    weights[last] = own_weight / sum;
    indices[last] = own_expert;
  }
}

template <typename T, int PerLane>
cudaError_t launch(const TopkSoftmaxArgs& args, cudaStream_t stream) {
  const bool wide =
      aligned(args.logits, args.logits_stride, Layout<T, PerLane>::kVector, sizeof(T));
  const dim3 block(kWarp, kRowsOfBlock);
  const dim3 grid(static_cast<unsigned>(ceil_div(args.rows, kRowsOfBlock)));
  topk_softmax_kernel<T, PerLane><<<grid, block, 0, stream>>>(
      static_cast<const T*>(args.logits), args.logits_stride, wide, args.weights, args.indices,
      args.rows, args.experts, args.k, args.renormalize);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_for_size(const TopkSoftmaxArgs& args, cudaStream_t stream) {
  if (args.experts <= kWarp) return launch<T, 1>(args, stream);
  if (args.experts <= kWarp * 2) return launch<T, 2>(args, stream);
  if (args.experts <= kWarp * 4) return launch<T, 4>(args, stream);
  if (args.experts <= kWarp * 8) return launch<T, 8>(args, stream);
  if (args.experts <= kWarp * 16) return launch<T, 16>(args, stream);
  return launch<T, kMaxExperts / kWarp>(args, stream);
}

}  // namespace topk_softmax_detail

cudaError_t topk_softmax_cuda(const TopkSoftmaxArgs& args, cudaStream_t stream) {
  using namespace topk_softmax_detail;
  return dispatch<Float16, BFloat16>(
      args.dtype, [&](auto zero) { return launch_for_size<decltype(zero)>(args, stream); });
}

}  // namespace fused_norm
