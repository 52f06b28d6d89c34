// The CPU path: the same definitions, order of rounding and order of ties as the kernels.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "operators.h"
#include "scalar_types.h"

namespace fused_norm {
namespace {

// Independent partial sums keep the rounding error of a long row near that of a block reduction, and
// let the compiler use vector registers without -ffast-math.
constexpr int64_t kLanes = 16;
using Lanes = std::array<float, kLanes>;

float total_of(Lanes lanes) {
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

template <typename T>
float sum_of_squares(const T* row, int64_t hidden) {
  Lanes lanes{};
  int64_t col = 0;
  for (; col + kLanes <= hidden; col += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = to_float(row[col + lane]);
      lanes[lane] += value * value;
    }
  }
  for (int64_t lane = 0; col < hidden; ++col, ++lane) {
    const float value = to_float(row[col]);
    lanes[lane] += value * value;
  }
  return total_of(lanes);
}

template <typename T>
void rms_norm_residual(const RmsNormArgs& args) {
  const T* weight = static_cast<const T*>(args.weight);
  for (int64_t row = 0; row < args.rows; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    const T* residual = static_cast<const T*>(args.residual) + row * args.residual_stride;
    T* sum = static_cast<T*>(args.sum) + row * args.hidden;
    T* y = static_cast<T*>(args.y) + row * args.hidden;
    for (int64_t col = 0; col < args.hidden; ++col) {
      sum[col] = from_float<T>(to_float(x[col]) + to_float(residual[col]));
    }
    const float mean = sum_of_squares(sum, args.hidden) / static_cast<float>(args.hidden);
    const float scale = 1.0f / std::sqrt(mean + args.eps);
    for (int64_t col = 0; col < args.hidden; ++col) {
      y[col] = from_float<T>(to_float(sum[col]) * scale * to_float(weight[col]));
    }
  }
}

template <typename T>
void swiglu(const SwigluArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
    const T* gate = static_cast<const T*>(args.gate) + row * args.gate_stride;
    T* out = static_cast<T*>(args.out) + row * args.cols;
    for (int64_t col = 0; col < args.cols; ++col) {
      const float g = to_float(gate[col]);
      out[col] = from_float<T>(to_float(x[col]) * (g / (1.0f + std::exp(-g))));
    }
  }
}

// One number to sort by: the order key above, the complement of the index below, so that of two equal
// logits the one with the lower index is bigger.
uint64_t ranked(uint32_t key, int32_t index) {
  return (static_cast<uint64_t>(key) << 32) | static_cast<uint32_t>(~index);
}

template <typename T>
void topk_softmax(const TopkSoftmaxArgs& args) {
  std::vector<uint64_t> order(args.experts);
  for (int64_t row = 0; row < args.rows; ++row) {
    const T* logits = static_cast<const T*>(args.logits) + row * args.logits_stride;
    float* weights = args.weights + row * args.k;
    int32_t* indices = args.indices + row * args.k;
    for (int32_t expert = 0; expert < args.experts; ++expert) {
      order[expert] = ranked(order_key(to_float(logits[expert])), expert);
    }
    std::partial_sort(order.begin(), order.begin() + args.k, order.end(), std::greater<uint64_t>());
    const float largest = key_value(static_cast<uint32_t>(order[0] >> 32));
    const int32_t summed = args.renormalize ? args.k : args.experts;
    Lanes sums{};
    for (int32_t rank = 0; rank < summed; ++rank) {
      const float weight = std::exp(key_value(static_cast<uint32_t>(order[rank] >> 32)) - largest);
      sums[rank % kLanes] += weight;
      if (rank < args.k) {
        weights[rank] = weight;
        indices[rank] = ~static_cast<int32_t>(static_cast<uint32_t>(order[rank]));
      }
    }
    const float sum = total_of(sums);
    for (int32_t rank = 0; rank < args.k; ++rank) weights[rank] /= sum;
  }
}

}  // namespace

void rms_norm_residual_cpu(const RmsNormArgs& args) {
  dispatch<Float16, BFloat16>(args.dtype,
                              [&](auto zero) { rms_norm_residual<decltype(zero)>(args); });
}

void swiglu_cpu(const SwigluArgs& args) {
  dispatch<Float16, BFloat16>(args.dtype, [&](auto zero) { swiglu<decltype(zero)>(args); });
}

void topk_softmax_cpu(const TopkSoftmaxArgs& args) {
  dispatch<Float16, BFloat16>(args.dtype, [&](auto zero) { topk_softmax<decltype(zero)>(args); });
}

}  // namespace fused_norm
