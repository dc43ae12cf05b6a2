// The XLA FFI handler that runs any compiled program on a GPU.
//
// A program is a binary that travels as an attribute of the call, so that an executable is complete in itself
// (persistent cache, export, second process). `initialize` runs before every execution, outside of command
// buffers: it loads what is new to the device. `execute` only enqueues on XLA's stream: a memset of the
// barriers' words, if there are any, and one launch. Only XLA's C API is used, and API 0.1 is reported: one
// binary serves every jaxlib. The driver is reached by dlopen (handler_library.h), as handler_driver.h of a
// target says.
//
// Attributes of the call (XLA sorts them by name):
//   binary     u8 array   the program's cubin, fat binary or code object
//   digest     string     of launch, signature and binary (runtime_trust.h)
//   launch     i64 array  how it is launched (LaunchPlan in handler_programs.h), and the launch parameters
//   name       string     the program's name, for errors
//   signature  i64 array  what it was compiled for (runtime_trust.h)
//   sync       i64        1: wait for the program and return its error at once; not with command buffers.
//                         2: the same, and tell when it begins and when it ends (runtime_log.h)
// The last result of the call is the workspace, unless the plan says that it needs none.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "handler_driver.h"
#include "handler_programs.h"
#include "runtime_ffi.h"
#include "runtime_log.h"

#define CK_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

XLA_FFI_Error* Fail(XLA_FFI_CallFrame* frame, const Problem& problem) {
  return Fail(frame, problem.code, problem.text);
}

bool ReadCall(const XLA_FFI_CallFrame* frame, Call* call) {
  auto* binary = ArrayAttribute(frame, "binary", XLA_FFI_DataType_U8);
  auto* digest = static_cast<const XLA_FFI_ByteSpan*>(Attribute(frame, "digest", XLA_FFI_AttrType_STRING));
  auto* launch = ArrayAttribute(frame, "launch", XLA_FFI_DataType_S64);
  auto* signature = ArrayAttribute(frame, "signature", XLA_FFI_DataType_S64);
  auto* name = static_cast<const XLA_FFI_ByteSpan*>(Attribute(frame, "name", XLA_FFI_AttrType_STRING));
  call->failures =
      static_cast<const XLA_FFI_ByteSpan*>(Attribute(frame, "failures", XLA_FFI_AttrType_STRING));
  int64_t sync = 0;
  if (binary == nullptr || digest == nullptr || digest->len != 64 || launch == nullptr ||
      signature == nullptr || name == nullptr || launch->size < kPlanSize ||
      !IntegerAttribute(frame, "sync", &sync)) {
    return false;
  }
  call->name = name->ptr;
  call->name_size = int(name->len < 200 ? name->len : 200);
  call->digest = digest->ptr;
  call->binary = static_cast<const uint8_t*>(binary->data);
  call->binary_size = binary->size;
  call->sync = sync != 0;
  call->log = sync == 2;
  call->launch = {static_cast<const int64_t*>(launch->data), launch->size};
  memcpy(&call->plan, launch->data, sizeof(LaunchPlan));
  call->signature = {static_cast<const int64_t*>(signature->data), signature->size};
  const LaunchPlan& plan = call->plan;
  return plan.version == kPlanVersion && plan.header_bytes >= 0 && plan.most_units >= 1 &&
         plan.most_units < 1 << 20 && plan.threads >= 1 && plan.threads <= 1024 &&
         plan.resident_shared_bytes >= 0 && plan.portable_shared_bytes >= 0 &&
         plan.workspace_bytes >= plan.header_bytes && plan.resident_units >= 1 &&
         plan.resident_units <= plan.most_units && plan.portable_units >= 1 &&
         plan.portable_units <= plan.most_units &&
         (plan.cluster == 0 || plan.resident_units == plan.most_units);
}

XLA_FFI_Error* BadAttributes(XLA_FFI_CallFrame* frame) {
  return Fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT,
              "jax_cocktail: the call needs the attributes binary (u8[]), digest (64 hexadecimal digits), "
              "launch (i64[12 or more], version 2), signature (i64[]), name and sync (i64); another version "
              "of jax_cocktail made it: compile it again");
}

bool StreamOf(XLA_FFI_CallFrame* frame, Stream* stream, XLA_FFI_Error** error) {
  XLA_FFI_Stream_Get_Args args;
  memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args);
  args.ctx = frame->ctx;
  *error = frame->api->XLA_FFI_Stream_Get(&args);
  *stream = static_cast<Stream>(args.stream);
  return *error == nullptr;
}

// Makes the place of a stream current while it lives.
class Current {
 public:
  Current(const Driver& driver, const Call& call, Stream stream, Problem* problem)
      : ok(Check(driver, call, Enter(driver, stream, &entered), problem)), driver_(driver) {}
  ~Current() { Leave(driver_, entered); }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

  Entered entered = {};
  const bool ok;

 private:
  const Driver& driver_;
};

// Takes the code that the program left, if any; the next one may then be written.
bool TakeError(const Call& call, const Program& program, const char* when, Problem* problem) {
  uint32_t* word = program.error_word;
  if (word == nullptr || __atomic_load_n(word, __ATOMIC_RELAXED) == 0) return true;
  unsigned code = __atomic_exchange_n(word, 0, __ATOMIC_RELAXED);
  if (code >> 31) {  // of builds with a limit
    return Refuse(call, problem, XLA_FFI_Error_Code_INTERNAL,
                  "block %u waited too long for the others in phase %u, in %s; please report this",
                  code >> 16 & 0x7fff, code & 0xffff, when);
  }
  size_t length = 0;
  const char* line = call.failures ? LineOf(call.failures, code, &length) : nullptr;
  if (line != nullptr) {
    return Refuse(call, problem, XLA_FFI_Error_Code_OUT_OF_RANGE,
                  "%.*s (in %s; its results there are not to be used)", int(length < 900 ? length : 900),
                  line, when);
  }
  return Refuse(call, problem, XLA_FFI_Error_Code_INTERNAL,
                "stopped with code %u in %s; its results there are not to be used", code, when);
}

void* DataOf(void* buffer) { return static_cast<const XLA_FFI_Buffer*>(buffer)->data; }

bool Enqueue(const Driver& driver, const XLA_FFI_CallFrame* frame, const Call& call,
             const Program& program, Stream stream, Problem* problem) {
  if (!Fits(call.signature, frame)) {
    return Refuse(call, problem, XLA_FFI_Error_Code_INVALID_ARGUMENT, CK_MISFIT);
  }
  int64_t operands = frame->args.size, results = frame->rets.size - (call.plan.workspace_bytes > 0);
  if (results < 0) {
    return Refuse(call, problem, XLA_FFI_Error_Code_INVALID_ARGUMENT, "the call has no workspace result");
  }
  const int64_t* sizes = call.launch.numbers + kPlanSize;
  size_t count = size_t(operands + results) + 2, more = (call.launch.size - kPlanSize) * sizeof(int64_t);
  size_t bytes = count * sizeof(void*) + more;
  if (bytes > program.parameter_limit) {
    return Refuse(call, problem, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
                  "%lld operands and results are more than a kernel takes here (%zu bytes of parameters, the "
                  "limit is %zu with " CK_PLATFORM
                  " %d.%d); pack some of them into one array, or update " CK_DRIVER_OF_VENDOR,
                  static_cast<long long>(operands + results), bytes, program.parameter_limit,
                  CK_MAJOR(driver.version), CK_MINOR(driver.version));
  }
  if (program.parameter_bytes != 0 && program.parameter_bytes != bytes) {
    return Refuse(call, problem, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                  "the call passes %zu bytes of parameters and the kernel takes %zu", bytes,
                  program.parameter_bytes);
  }
  auto** pointers = static_cast<void**>(__builtin_alloca(bytes));
  for (int64_t i = 0; i < operands; ++i) pointers[i] = DataOf(frame->args.args[i]);
  for (int64_t i = 0; i < results; ++i) pointers[operands + i] = DataOf(frame->rets.rets[i]);
  void* workspace = call.plan.workspace_bytes > 0 ? DataOf(frame->rets.rets[results]) : nullptr;
  pointers[count - 2] = workspace;
  pointers[count - 1] = reinterpret_cast<void*>(program.error_address);
  memcpy(pointers + count, sizes, more);
  if (call.plan.header_bytes > 0 && !program.launch.cluster) {
    auto header = reinterpret_cast<DevicePointer>(workspace);
    Outcome cleared = CK_CALL(MemsetD8Async, header, 0, size_t(call.plan.header_bytes), stream);
    if (!Check(driver, call, cleared, problem)) return false;
  }
  void* parameters[] = {pointers};
  return Check(driver, call, Start(driver, program.launch, stream, parameters), problem);
}

enum Stage { kInitialize, kExecute, kExecuteWithoutGraph };

XLA_FFI_Error* Run(XLA_FFI_CallFrame* frame, Stage stage) {
  Call call;
  if (!ReadCall(frame, &call)) return BadAttributes(frame);
  Problem problem;
  const Driver& driver = TheDriver();
  if (driver.problem[0] != 0) {
    Refuse(call, &problem, XLA_FFI_Error_Code_FAILED_PRECONDITION, "%s", driver.problem);
    return Fail(frame, problem);
  }
  Stream stream;
  XLA_FFI_Error* error;
  if (!StreamOf(frame, &stream, &error)) return error;
  Current current(driver, call, stream, &problem);
  Program* program = current.ok ? Find(driver, call, current.entered.place, &problem) : nullptr;
  if (program == nullptr) return Fail(frame, problem);
  if (stage == kInitialize) return nullptr;
  Logged logged(call.log ? call.name : nullptr, call.name_size);
  if (!TakeError(call, *program, "an earlier call", &problem) ||
      !Enqueue(driver, frame, call, *program, stream, &problem)) {
    return Fail(frame, problem);
  }
  logged.failed = false;
  if (!call.sync || stage == kExecute) return nullptr;
  Outcome waited = CK_CALL(StreamSynchronize, stream);
  if (!TakeError(call, *program, "this call", &problem) ||  // says more than that the kernel failed
      !Check(driver, call, waited, &problem)) {
    logged.failed = true;
    return Fail(frame, problem);
  }
  return nullptr;
}

}  // namespace

CK_EXPORT XLA_FFI_Error* ck_gpu_initialize(XLA_FFI_CallFrame* frame) {
  if (AnswerMetadata(frame, 0, XLA_FFI_TypeId{0})) return nullptr;
  return Run(frame, kInitialize);
}

// With command buffers: XLA may capture what this enqueues and replay it.
CK_EXPORT XLA_FFI_Error* ck_gpu_execute(XLA_FFI_CallFrame* frame) {
  const XLA_FFI_Handler_Traits traits = XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;
  if (AnswerMetadata(frame, traits, XLA_FFI_TypeId{0})) return nullptr;
  return Run(frame, kExecute);
}

// Without: this runs at every execution, so that it can tell of errors.
CK_EXPORT XLA_FFI_Error* ck_gpu_execute_nograph(XLA_FFI_CallFrame* frame) {
  if (AnswerMetadata(frame, 0, XLA_FFI_TypeId{0})) return nullptr;
  return Run(frame, kExecuteWithoutGraph);
}

// For tests: programs loaded so far in this process, once per context or device.
CK_EXPORT int64_t ck_gpu_load_count(void) {
  pthread_mutex_lock(&programs_mutex);
  int64_t count = load_count;
  pthread_mutex_unlock(&programs_mutex);
  return count;
}
