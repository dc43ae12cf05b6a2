// The fake driver of the handler's tests with what a program needs that brings no XLA: a primary context,
// memory, events and graphs. Kernels run when they are enqueued; events read the host's clock.
#define cuDeviceGetAttribute base_cuDeviceGetAttribute
#include "fake_cuda.cc"
#undef cuDeviceGetAttribute

#include <chrono>

namespace {

// Facts of the card for a process that cannot call fake_set: FAKE_FACTS="sms=4 in_cluster=0".
const bool has_read_facts = [] {
  std::string text = getenv("FAKE_FACTS") ? getenv("FAKE_FACTS") : "";
  for (size_t at = 0, end; at < text.size(); at = end + 1) {
    end = std::min(text.find(' ', at), text.size());
    size_t equals = text.find('=', at);
    facts[text.substr(at, equals - at)] = atoll(text.c_str() + equals + 1);
  }
  return true;
}();

struct Event {
  std::chrono::steady_clock::time_point at;
};
struct Graph {
  std::vector<std::function<void()>> work;
};

// Attributes that only the planner asks for, of an H200.
const std::map<int, int> kSizes = {{1, 1024},       {10, 32},   {13, 1980000}, {36, 3201000}, {37, 6144},
                                   {38, 52428800}, {39, 2048}, {81, 233472},  {82, 65536},   {106, 32}};

}  // namespace

FAKE_EXPORT Result cuDeviceGetAttribute(int* value, int attribute, Device device) {
  const char* major = getenv("FAKE_MAJOR");
  if (attribute == kDeviceMajor && major != nullptr) {
    *value = atoi(major);
    return kSuccess;
  }
  auto found = kSizes.find(attribute);
  if (found == kSizes.end()) return base_cuDeviceGetAttribute(value, attribute, device);
  *value = found->second;
  return kSuccess;
}

FAKE_EXPORT Result cuDeviceGetCount(int* number) {
  BEGIN(cuDeviceGetCount)
  *number = 1;
  return kSuccess;
}

FAKE_EXPORT Result cuDeviceGet(Device* device, int ordinal) {
  *device = ordinal;
  return kSuccess;
}

FAKE_EXPORT Result cuDeviceGetName(char* name, int bytes, Device) {
  snprintf(name, size_t(bytes), "Fake Card 1");
  return kSuccess;
}

FAKE_EXPORT Result cuDeviceTotalMem_v2(size_t* bytes, Device) {
  *bytes = size_t(80) << 30;
  return kSuccess;
}

FAKE_EXPORT Result cuDevicePrimaryCtxRetain(Context* context, Device device) {
  static Context primary = new ContextTag{device, ++last_id};
  *context = primary;
  return kSuccess;
}

FAKE_EXPORT Result cuDevicePrimaryCtxRelease_v2(Device) { return kSuccess; }

FAKE_EXPORT Result cuStreamCreate(Stream* stream, unsigned) {
  BEGIN(cuStreamCreate)
  *stream = new StreamTag{current.back(), false, false, {}};
  return kSuccess;
}

FAKE_EXPORT Result cuStreamDestroy_v2(Stream stream) {
  delete stream;
  return kSuccess;
}

FAKE_EXPORT Result cuEventCreate(Event** event, unsigned) {
  *event = new Event{};
  return kSuccess;
}

FAKE_EXPORT Result cuEventDestroy_v2(Event* event) {
  delete event;
  return kSuccess;
}

FAKE_EXPORT Result cuEventRecord(Event* event, Stream) {
  event->at = std::chrono::steady_clock::now();
  return kSuccess;
}

FAKE_EXPORT Result cuEventSynchronize(Event*) { return kSuccess; }

FAKE_EXPORT Result cuEventElapsedTime(float* milliseconds, Event* from, Event* to) {
  *milliseconds = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return kSuccess;
}

FAKE_EXPORT Result cuMemAlloc_v2(DevicePointer* memory, size_t bytes) {
  BEGIN(cuMemAlloc)
  *memory = reinterpret_cast<DevicePointer>(aligned_alloc(256, (bytes + 255) / 256 * 256));
  return kSuccess;
}

FAKE_EXPORT Result cuMemFree_v2(DevicePointer memory) {
  free(reinterpret_cast<void*>(memory));
  return kSuccess;
}

FAKE_EXPORT Result cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t bytes, Stream) {
  BEGIN(cuMemcpyHtoDAsync)
  memcpy(reinterpret_cast<void*>(to), from, bytes);
  return kSuccess;
}

FAKE_EXPORT Result cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t bytes, Stream) {
  memcpy(to, reinterpret_cast<void*>(from), bytes);
  return kSuccess;
}

FAKE_EXPORT Result cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t bytes, Stream stream) {
  Enqueue(stream, [=] { memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); });
  return kSuccess;
}

FAKE_EXPORT Result cuStreamBeginCapture_v2(Stream stream, int) {
  stream->capturing = true;
  return kSuccess;
}

FAKE_EXPORT Result cuStreamEndCapture(Stream stream, Graph** graph) {
  *graph = new Graph{stream->captured};
  stream->captured.clear();
  stream->capturing = false;
  return kSuccess;
}

FAKE_EXPORT Result cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, uint64_t) {
  *executable = new Graph(*graph);
  return kSuccess;
}

FAKE_EXPORT Result cuGraphLaunch(Graph* executable, Stream) {
  for (const auto& work : executable->work) work();
  return kSuccess;
}

FAKE_EXPORT Result cuGraphExecDestroy(Graph* executable) {
  delete executable;
  return kSuccess;
}

FAKE_EXPORT Result cuGraphDestroy(Graph* graph) {
  delete graph;
  return kSuccess;
}
