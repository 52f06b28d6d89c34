// The functions that Python calls, by the stable C ABI of TVM FFI: tensors come in as DLPack views.
//
// Outputs are given by the caller, so that the framework's own allocator makes them. Every argument is
// checked here, whoever calls; the Python layer checks first, with the names its users know.
#include <cuda_runtime_api.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <limits>
#include <string>

#include "operators.h"

#ifndef FUSED_NORM_CAPABILITIES
#error "define FUSED_NORM_CAPABILITIES as the capabilities of this build, such as \"8.0;9.0\""
#endif

namespace fused_norm {
namespace {

using tvm::ffi::String;
using tvm::ffi::TensorView;

DType storage_type(const char* name, const TensorView& tensor) {
  const DLDataType dtype = tensor.dtype();
  if (dtype.lanes == 1) {
    if (dtype.code == kDLFloat && dtype.bits == 32) return DType::kFloat32;
    if (dtype.code == kDLFloat && dtype.bits == 16) return DType::kFloat16;
    if (dtype.code == kDLBfloat && dtype.bits == 16) return DType::kBFloat16;
  }
  TVM_FFI_THROW(TypeError) << name << " must be float32, float16 or bfloat16, not "
                           << tvm::ffi::DLDataTypeToString(dtype);
  TVM_FFI_UNREACHABLE();
}

void check_dtype(const char* name, const TensorView& tensor, DLDataTypeCode code, int bits) {
  const DLDataType dtype = tensor.dtype();
  if (dtype.code != code || dtype.bits != bits || dtype.lanes != 1) {
    TVM_FFI_THROW(TypeError) << name << " must not be "
                             << tvm::ffi::DLDataTypeToString(dtype);
  }
}

bool on_cpu(const TensorView& tensor) {
  const DLDeviceType type = tensor.device().device_type;
  return type == kDLCPU || type == kDLCUDAHost;
}

void check_like(const char* name, const TensorView& tensor, const TensorView& model) {
  const DLDataType a = tensor.dtype();
  const DLDataType b = model.dtype();
  if (a.code != b.code || a.bits != b.bits || a.lanes != b.lanes) {
    TVM_FFI_THROW(TypeError) << name << " must have the dtype of the first tensor, "
                             << tvm::ffi::DLDataTypeToString(b) << ", not "
                             << tvm::ffi::DLDataTypeToString(a);
  }
}

void check_device(const char* name, const TensorView& tensor, const TensorView& model) {
  const DLDevice a = tensor.device();
  const DLDevice b = model.device();
  const bool same = on_cpu(tensor) ? on_cpu(model)
                                   : a.device_type == b.device_type && a.device_id == b.device_id;
  if (!same) TVM_FFI_THROW(ValueError) << name << " must be on the device of the first tensor";
  if (!on_cpu(tensor) && a.device_type != kDLCUDA) {
    TVM_FFI_THROW(ValueError) << name << " must be on a CPU or CUDA device, not on DLPack device type "
                              << static_cast<int>(a.device_type);
  }
}

void check_shape(const char* name, const TensorView& tensor, int64_t rows, int64_t cols) {
  if (tensor.ndim() != 2 || tensor.size(0) != rows || tensor.size(1) != cols) {
    TVM_FFI_THROW(ValueError) << name << " must have the shape [" << rows << ", " << cols << "]";
  }
}

// Frameworks give tensors without elements whatever strides they like, and nothing is read there.
bool is_packed(const TensorView& tensor) { return tensor.numel() == 0 || tensor.IsContiguous(); }

// The distance of two rows in elements; the elements of a row must be adjacent.
int64_t row_stride(const char* name, const TensorView& tensor) {
  if (tensor.ndim() != 2) TVM_FFI_THROW(ValueError) << name << " must have two dimensions";
  if (is_packed(tensor)) return tensor.size(1);
  if (tensor.size(1) > 1 && tensor.stride(1) != 1) {
    TVM_FFI_THROW(ValueError) << "the last dimension of " << name << " must have stride 1";
  }
  return tensor.stride(0);
}

void check_output(const char* name, const TensorView& tensor, const TensorView& model, int64_t rows,
                  int64_t cols) {
  check_device(name, tensor, model);
  check_shape(name, tensor, rows, cols);
  if (!is_packed(tensor)) TVM_FFI_THROW(ValueError) << name << " must be contiguous";
}

void check_extent(const char* name, int64_t value) {
  if (value > std::numeric_limits<int32_t>::max()) {
    TVM_FFI_THROW(ValueError) << name << " must be less than 2^31, not " << value;
  }
}

template <typename T = void>
T* address(const TensorView& tensor) {
  return reinterpret_cast<T*>(static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset());
}

class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    status_ = cudaGetDevice(&before_);
    if (status_ == cudaSuccess && before_ != device) {
      status_ = cudaSetDevice(device);
      changed_ = status_ == cudaSuccess;
    }
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  cudaError_t status() const { return status_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t status_ = cudaSuccess;
};

void throw_on_failure(const char* name, int device, cudaError_t status) {
  if (status == cudaSuccess) return;
  std::string advice;
  if (status == cudaErrorNoKernelImageForDevice) {
    int major = 0;
    int minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    advice = "; this build has kernels for " FUSED_NORM_CAPABILITIES ", the GPU has capability " +
             std::to_string(major) + "." + std::to_string(minor) +
             ": rebuild with it in PADDLE_CUDA_ARCH_LIST";
  }
  TVM_FFI_THROW(RuntimeError) << name << " failed on cuda:" << device << ": "
                              << cudaGetErrorString(status) << " (" << cudaGetErrorName(status) << ")"
                              << advice;
}

// Runs on the device of `tensor`; for CUDA on the stream that is current in the caller's framework,
// which TVM FFI asks for when it takes the arguments.
template <typename Args>
void run(const char* name, const TensorView& tensor, const Args& args, void (*cpu)(const Args&),
         cudaError_t (*cuda)(const Args&, cudaStream_t)) {
  if (args.rows == 0) return;
  if (on_cpu(tensor)) return cpu(args);
  const DLDevice device = tensor.device();
  const DeviceGuard guard(device.device_id);
  throw_on_failure(name, device.device_id, guard.status());
  const auto stream =
      static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  throw_on_failure(name, device.device_id, cuda(args, stream));
}

void rms_norm_residual(TensorView x, TensorView residual, TensorView weight, TensorView y,
                       TensorView sum, double eps) {
  RmsNormArgs args{};
  args.dtype = storage_type("x", x);
  args.x_stride = row_stride("x", x);
  args.rows = x.size(0);
  args.hidden = x.size(1);
  check_device("x", x, x);
  if (args.hidden < 1) TVM_FFI_THROW(ValueError) << "the last dimension of x must not be empty";
  check_extent("the number of rows", args.rows);
  check_extent("the last dimension of x", args.hidden);
  check_like("residual", residual, x);
  check_device("residual", residual, x);
  check_shape("residual", residual, args.rows, args.hidden);
  args.residual_stride = row_stride("residual", residual);
  check_like("weight", weight, x);
  check_device("weight", weight, x);
  if (weight.ndim() != 1 || weight.size(0) != args.hidden || !weight.IsContiguous()) {
    TVM_FFI_THROW(ValueError) << "weight must be contiguous and have the shape [" << args.hidden << "]";
  }
  check_like("y", y, x);
  check_output("y", y, x, args.rows, args.hidden);
  check_like("sum", sum, x);
  check_output("sum", sum, x, args.rows, args.hidden);
  args.x = address(x);
  args.residual = address(residual);
  args.weight = address(weight);
  args.y = address(y);
  args.sum = address(sum);
  args.eps = static_cast<float>(eps);
  run("rms_norm_residual", x, args, rms_norm_residual_cpu, rms_norm_residual_cuda);
}

void swiglu(TensorView x, TensorView gate, TensorView out) {
  SwigluArgs args{};
  args.dtype = storage_type("x", x);
  args.x_stride = row_stride("x", x);
  args.rows = x.size(0);
  args.cols = x.size(1);
  check_device("x", x, x);
  check_like("gate", gate, x);
  check_device("gate", gate, x);
  check_shape("gate", gate, args.rows, args.cols);
  args.gate_stride = row_stride("gate", gate);
  check_like("out", out, x);
  check_output("out", out, x, args.rows, args.cols);
  if (args.cols == 0) return;
  args.x = address(x);
  args.gate = address(gate);
  args.out = address(out);
  run("swiglu", x, args, swiglu_cpu, swiglu_cuda);
}

void topk_softmax(TensorView logits, TensorView weights, TensorView indices, int64_t k,
                  bool renormalize) {
  TopkSoftmaxArgs args{};
  args.dtype = storage_type("logits", logits);
  args.logits_stride = row_stride("logits", logits);
  args.rows = logits.size(0);
  const int64_t experts = logits.size(1);
  check_device("logits", logits, logits);
  if (experts < 1 || experts > kMaxExperts) {
    TVM_FFI_THROW(ValueError) << "the last dimension of logits (experts) must be 1 to " << kMaxExperts
                              << ", not " << experts;
  }
  if (k < 1 || k > experts) {
    TVM_FFI_THROW(ValueError) << "k must be 1 to " << experts << ", not " << k;
  }
  check_extent("the number of rows", args.rows);
  check_dtype("weights", weights, kDLFloat, 32);
  check_output("weights", weights, logits, args.rows, k);
  check_dtype("indices", indices, kDLInt, 32);
  check_output("indices", indices, logits, args.rows, k);
  args.logits = address(logits);
  args.weights = address<float>(weights);
  args.indices = address<int32_t>(indices);
  args.experts = static_cast<int32_t>(experts);
  args.k = static_cast<int32_t>(k);
  args.renormalize = renormalize;
  run("topk_softmax", logits, args, topk_softmax_cpu, topk_softmax_cuda);
}

String built_capabilities() { return FUSED_NORM_CAPABILITIES; }

}  // namespace
}  // namespace fused_norm

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rms_norm_residual, fused_norm::rms_norm_residual);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(swiglu, fused_norm::swiglu);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(topk_softmax, fused_norm::topk_softmax);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(built_capabilities, fused_norm::built_capabilities);
