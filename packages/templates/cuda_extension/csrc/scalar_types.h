// Storage types of the operators and their conversion to and from fp32.
//
// All arithmetic is done in fp32; a storage type is only read and written. The host functions are bit
// operations, so that the CPU path needs no F16C/AVX-512 and gives the bits of the device conversions
// (round to nearest, ties to even).
#ifndef FUSED_NORM_SCALAR_TYPES_H_
#define FUSED_NORM_SCALAR_TYPES_H_

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define FUSED_NORM_HD __host__ __device__ __forceinline__
#else
#define FUSED_NORM_HD inline
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "fused_norm needs compute capability 8.0 or newer; remove lower entries from PADDLE_CUDA_ARCH_LIST"
#endif

namespace fused_norm {

struct Float16 {
  uint16_t bits;
};

struct BFloat16 {
  uint16_t bits;
};

FUSED_NORM_HD uint32_t float_bits(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
#endif
}

FUSED_NORM_HD float bits_float(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
#endif
}

FUSED_NORM_HD float to_float(float value) { return value; }

// A bf16 value is the upper half of the fp32 value.
FUSED_NORM_HD float to_float(BFloat16 value) {
  return bits_float(static_cast<uint32_t>(value.bits) << 16);
}

FUSED_NORM_HD float to_float(Float16 value) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(value.bits));
#else
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity and NaN: all exponent bits are set in fp32 too
    return bits_float(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  // Move exponent and mantissa into place; a multiplication by 2^112 mends the exponent bias
  // (127 - 15) and normalises subnormal values. It is exact.
  return bits_float(sign | float_bits(bits_float(magnitude << 13) * 0x1p+112f));
#endif
}

template <typename T>
FUSED_NORM_HD T from_float(float value);

template <>
FUSED_NORM_HD float from_float<float>(float value) {
  return value;
}

template <>
FUSED_NORM_HD BFloat16 from_float<BFloat16>(float value) {
#if defined(__CUDA_ARCH__)
  return BFloat16{__bfloat16_as_ushort(__float2bfloat16_rn(value))};
#else
  const uint32_t bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return BFloat16{0x7fffu};
  const uint32_t round = 0x7fffu + ((bits >> 16) & 1u);
  return BFloat16{static_cast<uint16_t>((bits + round) >> 16)};
#endif
}

template <>
FUSED_NORM_HD Float16 from_float<Float16>(float value) {
#if defined(__CUDA_ARCH__)
  return Float16{__half_as_ushort(__float2half_rn(value))};
#else
  const uint32_t bits = float_bits(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return Float16{0x7fffu};
  // 65520 is halfway between the largest fp16 value, 65504, and the next one: it rounds to infinity.
  if (magnitude >= 0x477ff000u) return Float16{static_cast<uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is subnormal: adding 0.5 lines the last place of the sum (2^-24) up with
    // that of a subnormal fp16 value, and the fp32 addition does the rounding.
    const float shifted = bits_float(magnitude) + 0.5f;
    return Float16{static_cast<uint16_t>(sign | (float_bits(shifted) - 0x3f000000u))};
  }
  const uint32_t round = 0xfffu + ((magnitude >> 13) & 1u);
  return Float16{static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + round) >> 13))};
#endif
}

// Logits are ordered by an unsigned key: bigger value, bigger key; -0 equals +0; every NaN is the same
// and bigger than +infinity. Key 0 belongs to no value and marks "absent".
constexpr uint32_t kAbsentKey = 0;
constexpr uint32_t kNanKey = 0xffffffffu;

FUSED_NORM_HD uint32_t order_key(float value) {
  const uint32_t bits = float_bits(value + 0.0f);  // -0 + 0 is +0
  if ((bits & 0x7fffffffu) > 0x7f800000u) return kNanKey;
  return (bits & 0x80000000u) ? ~bits : (bits | 0x80000000u);
}

FUSED_NORM_HD float key_value(uint32_t key) {
  if (key == kNanKey) return bits_float(0x7fc00000u);
  return bits_float((key & 0x80000000u) ? (key & 0x7fffffffu) : ~key);
}

}  // namespace fused_norm

#endif  // FUSED_NORM_SCALAR_TYPES_H_
