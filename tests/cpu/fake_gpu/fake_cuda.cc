// A CUDA driver without a GPU.
#include "fake_driver.h"

namespace {
Id last_id = 0;
thread_local std::vector<Context> current;
}  // namespace

FAKE_EXPORT void* fake_context(int device) { return new ContextTag{device, ++last_id}; }
// A context at the address of one that is gone.
FAKE_EXPORT void fake_replace_context(Context context) { context->id = ++last_id; }
FAKE_EXPORT int fake_depth() { return int(current.size()); }

FAKE_EXPORT Result cuInit(unsigned) {
  BEGIN(cuInit)
  return kSuccess;
}

FAKE_EXPORT Result cuDriverGetVersion(int* version) {
  *version = int(facts["version"]);
  return kSuccess;
}

FAKE_EXPORT Result cuGetErrorName(Result result, const char** name) {
  static const std::map<int, const char*> names = {
      {2, "CUDA_ERROR_OUT_OF_MEMORY"},       {100, "CUDA_ERROR_NO_DEVICE"},
      {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"}, {200, "CUDA_ERROR_INVALID_IMAGE"},
      {201, "CUDA_ERROR_INVALID_CONTEXT"},   {500, "CUDA_ERROR_NOT_FOUND"},
      {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"}, {719, "CUDA_ERROR_LAUNCH_FAILED"},
      {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"}, {801, "CUDA_ERROR_NOT_SUPPORTED"},
      {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}};
  return NameOf(names, result, name);
}

FAKE_EXPORT Result cuGetErrorString(Result, const char** text) { return TextOf(text); }

FAKE_EXPORT Result cuStreamGetCtx(Stream stream, Context* context) {
  BEGIN(cuStreamGetCtx)
  *context = stream->context;
  return kSuccess;
}

FAKE_EXPORT Result cuStreamSynchronize(Stream stream) {
  BEGIN(cuStreamSynchronize)
  return Synchronize(stream);
}

FAKE_EXPORT Result cuCtxGetCurrent(Context* context) {
  *context = current.empty() ? nullptr : current.back();
  return kSuccess;
}

FAKE_EXPORT Result cuCtxPushCurrent_v2(Context context) {
  BEGIN(cuCtxPushCurrent)
  current.push_back(context);
  return kSuccess;
}

FAKE_EXPORT Result cuCtxPopCurrent_v2(Context* context) {
  if (current.empty()) return 201;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}

FAKE_EXPORT Result cuCtxGetId(Context context, Id* id) {
  if (!facts["ids"]) return kNotSupported;
  *id = context->id;
  return kSuccess;
}

FAKE_EXPORT Result cuCtxGetDevice(Device* device) {
  BEGIN(cuCtxGetDevice)
  if (current.empty()) return 201;
  *device = current.back()->device;
  return kSuccess;
}

FAKE_EXPORT Result cuDeviceGetAttribute(int* value, int attribute, Device device) {
  BEGIN(cuDeviceGetAttribute)
  static const std::map<int, const char*> names = {{kDeviceMultiprocessors, "sms"},
                                                   {kDeviceSharedMemoryOptIn, "shared"},
                                                   {kDeviceCooperativeLaunch, "cooperative"},
                                                   {kDeviceMajor, "major"},
                                                   {kDeviceMinor, "minor"}};
  auto found = names.find(attribute);
  if (found == names.end()) return 1;
  *value = int(Fact(found->second, device));
  return kSuccess;
}

FAKE_EXPORT Result cuModuleLoadData(Module* module, const void* image) {
  BEGIN(cuModuleLoadData)
  return current.empty() ? 201 : LoadImage(module, image, current.back());
}

FAKE_EXPORT Result cuModuleUnload(Module module) { return Unload(module); }

FAKE_EXPORT Result cuModuleGetFunction(Function* function, Module module, const char* name) {
  BEGIN(cuModuleGetFunction)
  return FindKernel(function, module, name, 49152);
}

FAKE_EXPORT Result cuFuncSetAttribute(Function function, int attribute, int value) {
  BEGIN(cuFuncSetAttribute)
  int device = function->module->context->device;
  int64_t most = Fact("shared", device);
  if (attribute == kFunctionNonPortableCluster && value == 1 && Fact("major", device) >= 9) {
    function->most_in_cluster = 16;
    return kSuccess;
  }
  if (attribute != kFunctionDynamicSharedBytes || value > most) return 1;
  function->shared_limit = value;
  return kSuccess;
}

FAKE_EXPORT Result cuFuncGetParamInfo(Function function, size_t index, size_t* offset, size_t* bytes) {
  if (index != 0 || function->module->parameter_bytes == 0) return 1;
  *offset = 0;
  *bytes = function->module->parameter_bytes;
  return kSuccess;
}

FAKE_EXPORT Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function function, int threads,
                                                               size_t shared) {
  BEGIN(cuOccupancyMaxActiveBlocksPerMultiprocessor)
  *blocks = MostBlocks(function, unsigned(threads), shared);
  return kSuccess;
}

// A device has room for a cluster of `in_cluster` blocks, one on each of so many multiprocessors.
FAKE_EXPORT Result cuOccupancyMaxActiveClusters(int* clusters, Function function,
                                                const LaunchConfig* config) {
  BEGIN(cuOccupancyMaxActiveClusters)
  int device = function->module->context->device;
  const LaunchAttribute& attribute = *config->attributes;
  if (config->num_attributes != 1 || attribute.id != kLaunchCluster) return 1;
  unsigned size = attribute.value.cluster[0];
  if (size != config->grid_x || attribute.value.cluster[1] != 1 || attribute.value.cluster[2] != 1) return 1;
  if (Fact("major", device) < 9 || size > function->most_in_cluster) return 912;
  int blocks = MostBlocks(function, config->block_x, config->shared_bytes);
  int64_t room = std::min(Fact("in_cluster", device), Fact("sms", device));
  *clusters = blocks > 0 && size <= room ? int(Fact("sms", device) / size) : 0;
  return kSuccess;
}

FAKE_EXPORT Result cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
  BEGIN(cuMemHostAlloc)
  return Pinned(memory, bytes, flags == (kHostPortable | kHostDeviceMap));
}

FAKE_EXPORT Result cuMemFreeHost(void* memory) { return Unpinned(memory); }

FAKE_EXPORT Result cuMemHostGetDevicePointer_v2(DevicePointer* pointer, void* memory, unsigned) {
  BEGIN(cuMemHostGetDevicePointer)
  *pointer = reinterpret_cast<DevicePointer>(memory);
  return kSuccess;
}

FAKE_EXPORT Result cuThreadExchangeStreamCaptureMode(int* mode) { return ExchangeMode(mode); }

FAKE_EXPORT Result cuMemsetD8Async(DevicePointer at, unsigned char value, size_t bytes, Stream stream) {
  BEGIN(cuMemsetD8Async)
  return Memset(at, value, bytes, stream);
}

#if !defined(FAKE_OLD)
FAKE_EXPORT Result cuLaunchKernelEx(const LaunchConfig* config, Function function, void** parameters,
                                    void** extra) {
  BEGIN(cuLaunchKernelEx)
  Stream stream = config->stream;
  if (current.empty() || current.back() != stream->context) return 201;
  if (extra != nullptr || config->grid_y * config->grid_z * config->block_y * config->block_z != 1) return 1;
  Launch launch = {function, config->grid_x, config->block_x, config->shared_bytes, false, false};
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->num_attributes; ++i) {
    const LaunchAttribute& attribute = config->attributes[i];
    if (attribute.id == kLaunchCooperative) {
      launch.cooperative = attribute.value.cooperative != 0;
    } else {
      int clusters = 0;
      Result result = cuOccupancyMaxActiveClusters(&clusters, function, config);
      if (result != kSuccess) return result;
      if (clusters == 0) return 912;
      cluster = attribute.value.cluster[0];
    }
  }
  return Run(launch, stream, cluster, parameters);
}
#endif
