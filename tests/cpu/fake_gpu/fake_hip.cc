// A HIP runtime without a GPU.
#include "fake_driver.h"

namespace {

thread_local Device current = 0;
const Device kDevices = 8;

// The one context of a device.
Context ContextOf(Device device) {
  static ContextTag contexts[kDevices] = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}, {6, 7}, {7, 8}};
  return &contexts[device];
}

// What both kinds of launch have.
Result RunKernel(Function function, unsigned grid, unsigned others, unsigned threads, unsigned shared,
                 Stream stream, void** parameters, bool cooperative) {
  if (current != stream->context->device) return 400;
  if (others != 1) return 1;
  return Run({function, grid, threads, shared, cooperative, false}, stream, 1, parameters);
}

}  // namespace

FAKE_EXPORT int fake_depth() { return current != 0; }
FAKE_EXPORT void* fake_context(int device) { return ContextOf(device); }

FAKE_EXPORT Result hipInit(unsigned) {
  BEGIN(hipInit)
  return kSuccess;
}

FAKE_EXPORT Result hipRuntimeGetVersion(int* version) {
  *version = int(facts["version"]);
  return kSuccess;
}

FAKE_EXPORT Result hipDrvGetErrorName(Result result, const char** name) {
  static const std::map<int, const char*> names = {
      {2, "hipErrorOutOfMemory"},
      {100, "hipErrorNoDevice"},
      {200, "hipErrorInvalidImage"},
      {201, "hipErrorInvalidContext"},
      {209, "hipErrorNoBinaryForGpu"},
      {500, "hipErrorNotFound"},
      {701, "hipErrorLaunchOutOfResources"},
      {719, "hipErrorLaunchFailure"},
      {720, "hipErrorCooperativeLaunchTooLarge"},
      {801, "hipErrorNotSupported"},
      {900, "hipErrorStreamCaptureUnsupported"}};
  return NameOf(names, result, name);
}

FAKE_EXPORT Result hipDrvGetErrorString(Result, const char** text) { return TextOf(text); }

FAKE_EXPORT Result hipStreamGetDevice(Stream stream, Device* device) {
  BEGIN(hipStreamGetDevice)
  *device = stream->context->device;
  return kSuccess;
}

FAKE_EXPORT Result hipStreamSynchronize(Stream stream) {
  BEGIN(hipStreamSynchronize)
  return Synchronize(stream);
}

FAKE_EXPORT Result hipGetDevice(Device* device) {
  BEGIN(hipGetDevice)
  *device = current;
  return kSuccess;
}

FAKE_EXPORT Result hipSetDevice(Device device) {
  BEGIN(hipSetDevice)
  if (device < 0 || device >= kDevices) return 101;
  current = device;
  return kSuccess;
}

FAKE_EXPORT Result hipDeviceGetName(char* name, int bytes, Device device) {
  BEGIN(hipDeviceGetName)
  snprintf(name, size_t(bytes), "AMD Fake %d", int(Fact("major", device) * 10 + Fact("minor", device)));
  return kSuccess;
}

FAKE_EXPORT Result hipDeviceGetAttribute(int* value, int attribute, Device device) {
  BEGIN(hipDeviceGetAttribute)
  static const std::map<int, const char*> names = {{kDeviceMultiprocessors, "sms"},
                                                   {kDeviceSharedMemory, "shared"},
                                                   {kDeviceCooperativeLaunch, "cooperative"}};
  auto found = names.find(attribute);
  if (found == names.end()) return 1;
  *value = int(Fact(found->second, device));
  return kSuccess;
}

FAKE_EXPORT Result hipModuleLoadData(Module* module, const void* image) {
  BEGIN(hipModuleLoadData)
  return LoadImage(module, image, ContextOf(current));
}

FAKE_EXPORT Result hipModuleUnload(Module module) { return Unload(module); }

FAKE_EXPORT Result hipModuleGetFunction(Function* function, Module module, const char* name) {
  BEGIN(hipModuleGetFunction)
  return FindKernel(function, module, name, Fact("shared", module->context->device));
}

FAKE_EXPORT Result hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function function,
                                                                      int threads, size_t shared) {
  BEGIN(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor)
  *blocks = MostBlocks(function, unsigned(threads), shared);
  return kSuccess;
}

FAKE_EXPORT Result hipHostMalloc(void** memory, size_t bytes, unsigned flags) {
  BEGIN(hipHostMalloc)
  return Pinned(memory, bytes, flags == (kHostPortable | kHostDeviceMap | kHostCoherent));
}

FAKE_EXPORT Result hipHostFree(void* memory) { return Unpinned(memory); }

FAKE_EXPORT Result hipHostGetDevicePointer(DevicePointer* pointer, void* memory, unsigned) {
  BEGIN(hipHostGetDevicePointer)
  *pointer = reinterpret_cast<DevicePointer>(memory);
  return kSuccess;
}

FAKE_EXPORT Result hipThreadExchangeStreamCaptureMode(int* mode) { return ExchangeMode(mode); }

FAKE_EXPORT Result hipMemsetD8Async(DevicePointer at, unsigned char value, size_t bytes, Stream stream) {
  BEGIN(hipMemsetD8Async)
  return Memset(at, value, bytes, stream);
}

FAKE_EXPORT Result hipModuleLaunchKernel(Function function, unsigned grid, unsigned grid_y, unsigned grid_z,
                                         unsigned block, unsigned block_y, unsigned block_z, unsigned shared,
                                         Stream stream, void** parameters, void** extra) {
  BEGIN(hipModuleLaunchKernel)
  if (extra != nullptr) return 1;
  unsigned others = grid_y * grid_z * block_y * block_z;
  return RunKernel(function, grid, others, block, shared, stream, parameters, false);
}

#if !defined(FAKE_OLD)
FAKE_EXPORT Result hipModuleLaunchCooperativeKernel(Function function, unsigned grid, unsigned grid_y,
                                                    unsigned grid_z, unsigned block, unsigned block_y,
                                                    unsigned block_z, unsigned shared, Stream stream,
                                                    void** parameters) {
  BEGIN(hipModuleLaunchCooperativeKernel)
  unsigned others = grid_y * grid_z * block_y * block_z;
  return RunKernel(function, grid, others, block, shared, stream, parameters, true);
}
#endif
