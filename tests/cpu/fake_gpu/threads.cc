// Many threads call the handler for one program in two contexts; the sanitizer watches.
#include <dlfcn.h>
#include <string.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "handler.cc"

static thread_local void* stream_of_thread;
static std::atomic<int> waiting{8};  // so that all begin at once

static XLA_FFI_Error* GiveStream(XLA_FFI_Stream_Get_Args* args) {
  args->stream = stream_of_thread;
  return nullptr;
}

static XLA_FFI_Error* Report(XLA_FFI_Error_Create_Args* args) {
  fprintf(stderr, "%s\n", args->message);
  exit(2);
}

// One call site: attributes sorted by name, as XLA has them, an operand, a result and the workspace.
struct Site {
  char binary[32] = "FAKE arch=90 parameters=32";
  char digest[65];
  int64_t plan[12] = {2, 64, 132, 256, 100000, 4096, 128, 1, 1, 132, 132, 0}, sync = 0;
  int64_t signature[9] = {1, 2, 0, XLA_FFI_DataType_U8, 0, XLA_FFI_DataType_U8, 0, XLA_FFI_DataType_U8, 0};
  XLA_FFI_ByteSpan texts[8], *names[6];
  XLA_FFI_Array arrays[3];
  XLA_FFI_Scalar scalar;
  XLA_FFI_AttrType types[6] = {XLA_FFI_AttrType_ARRAY,  XLA_FFI_AttrType_STRING, XLA_FFI_AttrType_ARRAY,
                               XLA_FFI_AttrType_STRING, XLA_FFI_AttrType_ARRAY,  XLA_FFI_AttrType_SCALAR};
  void* values[6];
  XLA_FFI_Api api;
};

static void Prepare(Site* site) {
  size_t size = strlen(site->binary);
  auto* binary = reinterpret_cast<const uint8_t*>(site->binary);
  Signature signature = {site->signature, 9};
  memcpy(site->digest, DigestsOf(site->plan, sizeof(site->plan), signature, binary, size).call, 64);
  ck_set_permit([](const char*) { return 1; });
  const char* names[] = {"binary", "digest", "launch", "name", "signature", "sync"};
  for (int i = 0; i < 6; ++i) {
    site->texts[i] = {names[i], strlen(names[i])};
    site->names[i] = &site->texts[i];
  }
  site->texts[6] = {site->digest, 64};
  site->texts[7] = {"threads", 7};
  site->arrays[0] = {XLA_FFI_DataType_U8, size, site->binary};
  site->arrays[1] = {XLA_FFI_DataType_S64, 12, site->plan};
  site->arrays[2] = {XLA_FFI_DataType_S64, 9, site->signature};
  site->scalar = {XLA_FFI_DataType_S64, &site->sync};
  void* values[] = {&site->arrays[0], &site->texts[6],  &site->arrays[1],
                    &site->texts[7],  &site->arrays[2], &site->scalar};
  memcpy(site->values, values, sizeof(values));
  memset(&site->api, 0, sizeof(site->api));
  site->api.XLA_FFI_Stream_Get = GiveStream;
  site->api.XLA_FFI_Error_Create = Report;
}

static void Work(Site* site, void* stream) {
  stream_of_thread = stream;
  char memory[3][128];
  XLA_FFI_Buffer buffers[3];
  void* addresses[3];
  for (int i = 0; i < 3; ++i) {
    memset(&buffers[i], 0, sizeof(buffers[i]));
    buffers[i].data = memory[i];
    buffers[i].dtype = XLA_FFI_DataType_U8;
    addresses[i] = &buffers[i];
  }
  XLA_FFI_CallFrame frame;
  memset(&frame, 0, sizeof(frame));
  frame.api = &site->api;
  frame.args.size = 1;
  frame.args.args = addresses;
  frame.rets.size = 2;
  frame.rets.rets = addresses + 1;
  frame.attrs.size = 6;
  frame.attrs.types = site->types;
  frame.attrs.names = site->names;
  frame.attrs.attrs = site->values;
  for (--waiting; waiting > 0;) std::this_thread::yield();
  for (int i = 0; i < 200; ++i) {
    ck_gpu_initialize(&frame);
    ck_gpu_execute_nograph(&frame);
  }
}

int main() {
  Site site;
  Prepare(&site);
  void* fake = dlopen(getenv(CK_LIBRARY_VARIABLE), RTLD_NOW | RTLD_LOCAL);
  auto* new_context = reinterpret_cast<void* (*)(int)>(dlsym(fake, "fake_context"));
  auto* new_stream = reinterpret_cast<void* (*)(void*)>(dlsym(fake, "fake_stream"));
  auto* launches = reinterpret_cast<int (*)()>(dlsym(fake, "fake_launches"));
  void* contexts[] = {new_context(0), new_context(1)};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back(Work, &site, new_stream(contexts[i % 2]));
  for (auto& thread : threads) thread.join();
  printf("%lld programs, %d launches\n", static_cast<long long>(ck_gpu_load_count()), launches());
  return 0;
}
