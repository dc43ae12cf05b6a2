// The CPU runtime: two XLA FFI handlers that run compiled programs, and one that reports failures of programs
// of stock XLA (runtime_failure.h).
//
// A program is a shared object that travels as an attribute of the call, so that an executable is complete
// in itself (persistent cache, export, second process). `instantiate` checks its digest, asks whether it is
// permitted (runtime_trust.h) and loads it once per process; `execute` checks the buffers and calls its entry
// point, with as many threads as the program has work for and the process has idle. Only XLA's C API is used,
// and API 0.1 is reported: one binary serves every jaxlib. No C++ library: builds with any C++17 compiler,
// also with -nostdlib++.
//
// Attributes of the call (XLA sorts them by name):
//   binary            u8 array  the program's shared object
//   digest            string    of launch, signature, binary and forms (runtime_trust.h)
//   failures          string    of a program that can fail: one line of text for each of its error codes
//   forms             i64[]     optional: numbers that follow from the operands' shapes (runtime_forms.h)
//   launch            i64[]     see Launch; the launch parameters follow
//   log               string    optional: its name; the program tells when it begins and ends (runtime_log.h)
//   loops             string    a line of text for each loop in which it can be stopped (runtime_stop.h)
//   signature         i64[]     what the program was compiled for (runtime_trust.h)
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime_failure.h"
#include "runtime_ffi.h"
#include "runtime_load.h"
#include "runtime_log.h"
#include "runtime_trust.h"
#include "runtime_units.h"
#include "xla/ffi/api/c_api.h"

namespace {

// ---- the state of an instantiated call ------------------------------------------------------------------

struct Launch {
  int64_t workspace;         // bytes of scratch memory to lend to every call, or 0
  int64_t workspace_result;  // 1: the last result buffer is the scratch memory
  int64_t exit_flag;         // the number of the result that is the exit flag of the program; -1: it has none
  int64_t own_bytes;         // memory of each unit
};

struct State {
  Program* program;
  Launch launch;
  Signature signature;  // of numbers that follow the state in memory
  Numbers sizes;        // the launch parameters, which follow these
  Numbers forms;        // behind them
  const char* name;     // behind these; null: its calls are silent
  int name_size;
};

XLA_FFI_TypeId state_type_id = {0};
XLA_FFI_TypeInfo state_type_info;

void DeleteState(void* state) {
  ReleaseProgram(static_cast<State*>(state)->program);
  free(state);
}

// Takes over the caller's use of the program. `launch`: a Launch and the launch parameters. nullptr: there is
// no memory.
State* NewState(Program* program, const Numbers& launch, const Signature& signature, const Numbers& forms,
                const XLA_FFI_ByteSpan* name) {
  const size_t head = sizeof(Launch) / sizeof(int64_t), name_size = name == nullptr ? 0 : name->len;
  const Numbers parts[] = {signature, {launch.numbers + head, launch.size - head}, forms};
  size_t count = 0;
  for (const Numbers& part : parts) count += part.size;
  auto* state = static_cast<State*>(malloc(sizeof(State) + count * sizeof(int64_t) + name_size));
  if (state == nullptr) {
    ReleaseProgram(program);
    return nullptr;
  }
  auto* next = reinterpret_cast<int64_t*>(state + 1);
  Numbers copies[3];
  for (int k = 0; k < 3; ++k) {
    if (parts[k].size > 0) memcpy(next, parts[k].numbers, parts[k].size * sizeof(int64_t));
    copies[k] = {next, parts[k].size};
    next += parts[k].size;
  }
  char* copy = name_size > 0 ? reinterpret_cast<char*>(next) : nullptr;
  if (copy != nullptr) memcpy(copy, name->ptr, name_size);
  *state = State{program, {}, copies[0], copies[1], copies[2], copy, int(name_size)};
  memcpy(&state->launch, launch.numbers, sizeof(Launch));
  return state;
}

// The error of a call that was stopped. Code in Python knows it by its beginning and by its code.
XLA_FFI_Error* FailStopped(XLA_FFI_CallFrame* frame, const End& end) {
  auto* lines = static_cast<const XLA_FFI_ByteSpan*>(Attribute(frame, "loops", XLA_FFI_AttrType_STRING));
  size_t length = 0;
  const char* line = lines == nullptr ? nullptr : LineOf(lines, end.loop + 1, &length);
  if (line == nullptr) {
    line = "a loop";
    length = strlen(line);
  }
  bool late = end.reason == kTimeIsOver;
  char text[1024], limit[64] = "", trips[64] = "";
  if (late) snprintf(limit, sizeof(limit), "after %g s ", double(end.limit) * 1e-9);
  if (end.trip >= 0) {
    snprintf(trips, sizeof(trips), ", which had run %lld iterations", static_cast<long long>(end.trip));
  }
  const char* advice = late ? "; raise max_seconds if it needs longer" : "";
  snprintf(text, sizeof(text), "jax_cocktail: stopped %sin %.*s%s%s", limit,
           int(length < 800 ? length : 800), line, trips, advice);
  return Fail(frame, late ? XLA_FFI_Error_Code_DEADLINE_EXCEEDED : XLA_FFI_Error_Code_CANCELLED, text);
}

// Runs a call with the values of its forms.
XLA_FFI_Error* Run(XLA_FFI_CallFrame* frame, const State* state, const Values& values) {
  if (!Fits(state->signature, frame, values)) {
    return Fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, "jax_cocktail: " CK_MISFIT);
  }
  const Launch& launch = state->launch;
  const int64_t* sizes = state->sizes.numbers;
  if (values.count > 0) {
    auto* own = static_cast<int64_t*>(__builtin_alloca(state->sizes.size * sizeof(int64_t) + 1));
    for (size_t k = 0; k < state->sizes.size; ++k) own[k] = values.Of(sizes[k]);
    sizes = own;
  }
  int64_t num_inputs = frame->args.size, num_outputs = frame->rets.size;
  size_t num_bytes = size_t(num_inputs + num_outputs + 1) * sizeof(void*);
  void** inputs = static_cast<void**>(__builtin_alloca(num_bytes));
  void** outputs = inputs + num_inputs;
  for (int64_t i = 0; i < num_inputs; ++i) {
    inputs[i] = static_cast<const XLA_FFI_Buffer*>(frame->args.args[i])->data;
  }
  for (int64_t i = 0; i < num_outputs; ++i) {
    outputs[i] = static_cast<const XLA_FFI_Buffer*>(frame->rets.rets[i])->data;
  }
  unsigned char* workspace = nullptr;
  if (launch.workspace_result) {
    if (num_outputs == 0) {
      return Fail(frame, XLA_FFI_Error_Code_INTERNAL, "jax_cocktail: no workspace result");
    }
    workspace = static_cast<unsigned char*>(outputs[num_outputs - 1]);
  }
  int64_t lent = launch.workspace_result ? 0 : values.Of(launch.workspace);
  End end = {};
  const Given given = {workspace, lent, values.Of(launch.own_bytes), reinterpret_cast<const i64*>(sizes)};
  Logged logged(state->name, state->name_size);
  if (!RunProgram(&state->program->entry, inputs, outputs, given, 0, &end)) {
    return Fail(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "jax_cocktail: no memory for the workspace");
  }
  if (end.reason != kGoesOn) return FailStopped(frame, end);
  const int code = end.code;
  if (code == 0) {
    logged.failed = false;
    if (launch.exit_flag >= 0 && launch.exit_flag < num_outputs) {
      bool exited = *static_cast<const bool*>(outputs[launch.exit_flag]);
      __atomic_fetch_add(&state->program->calls, 1, __ATOMIC_RELAXED);
      if (exited) __atomic_fetch_add(&state->program->exits, 1, __ATOMIC_RELAXED);
    }
    return nullptr;
  }
  auto* lines = static_cast<const XLA_FFI_ByteSpan*>(Attribute(frame, "failures", XLA_FFI_AttrType_STRING));
  if (lines != nullptr) return FailWithStatus(frame, lines, code);
  char text[1024];
  snprintf(text, sizeof(text), "jax_cocktail: the program stopped with code %d", code);
  return Fail(frame, XLA_FFI_Error_Code_INTERNAL, text);
}

// Evaluates the forms of a call.
XLA_FFI_Error* RunAnySize(XLA_FFI_CallFrame* frame, const State* state) {
  const int64_t count = state->forms.numbers[0];
  auto* values = static_cast<int64_t*>(__builtin_alloca(size_t(count) * sizeof(int64_t) + 1));
  if (!FormReader(state->forms, frame).Evaluate(values, count)) {
    return Fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, "jax_cocktail: " CK_MISFIT);
  }
  return Run(frame, state, {values, count});
}

}  // namespace

CK_EXPORT XLA_FFI_Error* ck_cpu_instantiate(XLA_FFI_CallFrame* frame) {
  if (AnswerMetadata(frame, 0, state_type_id)) return nullptr;
  auto* binary = ArrayAttribute(frame, "binary", XLA_FFI_DataType_U8);
  auto* numbers = ArrayAttribute(frame, "launch", XLA_FFI_DataType_S64);
  auto* signed_for = ArrayAttribute(frame, "signature", XLA_FFI_DataType_S64);
  auto* digest = static_cast<const XLA_FFI_ByteSpan*>(Attribute(frame, "digest", XLA_FFI_AttrType_STRING));
  if (binary == nullptr || digest == nullptr || digest->len != 64 || numbers == nullptr ||
      numbers->size * sizeof(int64_t) < sizeof(Launch) || signed_for == nullptr) {
    return Fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                "jax_cocktail: the call needs the attributes binary (u8[]), digest (64 hexadecimal digits), "
                "launch (i64[]) and signature (i64[]); another version of jax_cocktail made it: compile it "
                "again");
  }
  auto* launch = static_cast<const int64_t*>(numbers->data);
  Signature signature = {static_cast<const int64_t*>(signed_for->data), signed_for->size};
  auto* formed = ArrayAttribute(frame, "forms", XLA_FFI_DataType_S64);
  Numbers forms = {};
  if (formed != nullptr) forms = {static_cast<const int64_t*>(formed->data), formed->size};
  if (forms.size > 0 && (forms.numbers[0] < 0 || size_t(forms.numbers[0]) > forms.size)) {
    return Fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, "jax_cocktail: " CK_MISFIT);
  }
  auto* data = static_cast<const uint8_t*>(binary->data);
  Digests actual = DigestsOf(launch, numbers->size * sizeof(int64_t), signature, data, binary->size, forms);
  char problem[1024] = "", text[1200];
  Program* program = nullptr;
  XLA_FFI_Error_Code code = XLA_FFI_Error_Code_FAILED_PRECONDITION;
  bool damaged = memcmp(actual.call, digest->ptr, 64) != 0;
  Permission permission = damaged ? kRefused : PermissionOf(actual.call);
  if (damaged) {
    snprintf(problem, sizeof(problem), "the program is damaged (SHA-256 %.16s..., expected %.16s...)",
             actual.call, digest->ptr);
  } else if (permission == kRefused) {
    code = XLA_FFI_Error_Code_PERMISSION_DENIED;
    snprintf(problem, sizeof(problem), "the program is not trusted: " CK_NOT_PERMITTED, actual.call);
  } else {
    Origin origin = permission == kCompiledHere ? kBuiltHere : kBuiltAnywhere;
    program = FindProgram(actual.binary, data, binary->size, origin, problem, sizeof(problem));
  }
  if (program == nullptr) {
    snprintf(text, sizeof(text), "jax_cocktail: %s", problem);
    return Fail(frame, code, text);
  }
  auto* name = static_cast<const XLA_FFI_ByteSpan*>(Attribute(frame, "log", XLA_FFI_AttrType_STRING));
  State* state = NewState(program, {launch, numbers->size}, signature, forms, name);
  if (state == nullptr) {
    return Fail(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "jax_cocktail: out of memory");
  }
  XLA_FFI_State_Set_Args args;
  memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args);
  args.ctx = frame->ctx;
  args.stage = XLA_FFI_ExecutionStage_INSTANTIATE;
  args.type_id = &state_type_id;
  args.state = state;
  XLA_FFI_Error* error = frame->api->XLA_FFI_State_Set(&args);
  if (error != nullptr) DeleteState(state);
  return error;
}

CK_EXPORT XLA_FFI_Error* ck_cpu_execute(XLA_FFI_CallFrame* frame) {
  if (AnswerMetadata(frame, 0, state_type_id)) return nullptr;
  XLA_FFI_State_Get_Args args;
  memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args);
  args.ctx = frame->ctx;
  args.stage = XLA_FFI_ExecutionStage_INSTANTIATE;
  args.type_id = &state_type_id;
  XLA_FFI_Error* error = frame->api->XLA_FFI_State_Get(&args);
  if (error != nullptr) return error;
  auto* state = static_cast<const State*>(args.state);
  return state->forms.size > 0 ? RunAnySize(frame, state) : Run(frame, state, {});
}

// For jax.ffi.register_ffi_type, which must precede the registration of the handlers and fills in the id.
CK_EXPORT void* ck_cpu_state_type_id(void) { return &state_type_id; }
CK_EXPORT void* ck_cpu_state_type_info(void) {
  memset(&state_type_info, 0, sizeof(state_type_info));
  state_type_info.struct_size = sizeof(state_type_info);
  state_type_info.deleter = DeleteState;
  return &state_type_info;
}

// Loads a program for a call that follows soon. `digest`: of the binary; `anywhere`: it may have been built
// for another processor. Returns 1; or 0, and `problem` is the reason.
CK_EXPORT int ck_cpu_load(const char* digest, const uint8_t* data, size_t size, int anywhere, char* problem,
                          size_t problem_size) {
  Origin origin = anywhere ? kBuiltAnywhere : kBuiltHere;
  Program* program = FindProgram(digest, data, size, origin, problem, problem_size);
  if (program != nullptr) ReleaseProgram(program);
  return program != nullptr;
}

// The cache folder, once, before any program is loaded. No other user can write to it.
CK_EXPORT void ck_cpu_set_folder(const char* folder) { cache_folder = strdup(folder); }

// How often the program with this digest of its binary has left by a side exit, and in `calls` how often it
// was called.
CK_EXPORT int64_t ck_cpu_exits(const char* digest, int64_t* calls) {
  return CountExits(digest, calls);
}

// For tests: programs loaded so far in this process, and those that are loaded now.
CK_EXPORT int64_t ck_cpu_load_count(void) {
  return Locked(&load_count);
}
CK_EXPORT int64_t ck_cpu_loaded_now(void) {
  return Locked(&loaded_now);
}
