// The CPU runtime: two XLA FFI handlers that run compiled programs, and one that reports failures of programs
// of stock XLA (runtime_failure.h).
//
// A program is a shared object that travels as an attribute of the call, so that an executable is complete
// in itself (persistent cache, export, second process). `instantiate` checks its SHA-256 digest and loads it
// once per process; `execute` calls its entry point, with as many threads as the program has work for and the
// process has idle. Only XLA's C API is used, and API 0.1 is reported: one
// binary serves every jaxlib. No C++ library: builds with any C++17 compiler, also with -nostdlib++.
//
// Attributes of the call (XLA sorts them by name):
//   binary            u8 array  the program's shared object
//   digest            string    its SHA-256, lower-case hexadecimal
//   failures          string    of a program that can fail: one line of text for each of its error codes
//   exit_flag         i64       of a program with side exits: the number of the result that is its exit flag
//   workspace         i64       bytes of scratch memory to lend to every call, or 0
//   workspace_result  i64       1: the last result buffer is the scratch memory
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
#include "runtime_units.h"
#include "xla/ffi/api/c_api.h"

namespace {

// ---- the state of an instantiated call ------------------------------------------------------------------

struct State {
  Program* program;
  int64_t workspace;
  bool workspace_result;
  int64_t exit_flag;  // -1: none
};

XLA_FFI_TypeId state_type_id = {0};
XLA_FFI_TypeInfo state_type_info;

void DeleteState(void* state) { free(state); }

XLA_FFI_Error* Run(XLA_FFI_CallFrame* frame, const State* state) {
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
  if (state->workspace_result) {
    if (num_outputs == 0) {
      return Fail(frame, XLA_FFI_Error_Code_INTERNAL, "jax_cocktail: no workspace result");
    }
    workspace = static_cast<unsigned char*>(outputs[num_outputs - 1]);
  }
  int64_t lent = state->workspace_result ? 0 : state->workspace;
  int code = 0;
  if (!RunProgram(&state->program->entry, inputs, outputs, workspace, lent, 0, &code)) {
    return Fail(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "jax_cocktail: no memory for the workspace");
  }
  if (code == 0) {
    if (state->exit_flag >= 0 && state->exit_flag < num_outputs) {
      bool exited = *static_cast<const bool*>(outputs[state->exit_flag]);
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

}  // namespace

CK_EXPORT XLA_FFI_Error* ck_cpu_instantiate(XLA_FFI_CallFrame* frame) {
  if (AnswerMetadata(frame, 0, state_type_id)) return nullptr;
  auto* binary = static_cast<const XLA_FFI_Array*>(Attribute(frame, "binary", XLA_FFI_AttrType_ARRAY));
  auto* digest = static_cast<const XLA_FFI_ByteSpan*>(Attribute(frame, "digest", XLA_FFI_AttrType_STRING));
  int64_t workspace = 0, workspace_result = 0;
  if (binary == nullptr || binary->dtype != XLA_FFI_DataType_U8 || digest == nullptr || digest->len != 64 ||
      !IntegerAttribute(frame, "workspace", &workspace) || workspace < 0 ||
      !IntegerAttribute(frame, "workspace_result", &workspace_result)) {
    return Fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                "jax_cocktail: the call needs the attributes binary (u8[]), digest (64 hexadecimal digits), "
                "workspace (i64) and workspace_result (i64)");
  }
  char problem[1024] = "", text[1200];
  auto* data = static_cast<const uint8_t*>(binary->data);
  Program* program = FindProgram(digest->ptr, data, binary->size, kBuiltAnywhere, problem, sizeof(problem));
  if (program == nullptr) {
    snprintf(text, sizeof(text), "jax_cocktail: %s", problem);
    return Fail(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION, text);
  }
  auto* state = static_cast<State*>(malloc(sizeof(State)));
  if (state == nullptr) {
    return Fail(frame, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "jax_cocktail: out of memory");
  }
  int64_t exit_flag = -1;
  IntegerAttribute(frame, "exit_flag", &exit_flag);
  *state = State{program, workspace, workspace_result != 0, exit_flag};
  XLA_FFI_State_Set_Args args;
  memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args);
  args.ctx = frame->ctx;
  args.stage = XLA_FFI_ExecutionStage_INSTANTIATE;
  args.type_id = &state_type_id;
  args.state = state;
  XLA_FFI_Error* error = frame->api->XLA_FFI_State_Set(&args);
  if (error != nullptr) free(state);
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
  return Run(frame, static_cast<const State*>(args.state));
}

// For jax.ffi.register_ffi_type, which must precede the registration of the handlers and fills in the id.
CK_EXPORT void* ck_cpu_state_type_id(void) { return &state_type_id; }
CK_EXPORT void* ck_cpu_state_type_info(void) {
  memset(&state_type_info, 0, sizeof(state_type_info));
  state_type_info.struct_size = sizeof(state_type_info);
  state_type_info.deleter = DeleteState;
  return &state_type_info;
}

// Loads a program that was built for this processor. Returns 1; or 0, and `problem` is the reason.
CK_EXPORT int ck_cpu_load(const char* digest, const uint8_t* data, size_t size, char* problem,
                          size_t problem_size) {
  return FindProgram(digest, data, size, kBuiltHere, problem, problem_size) != nullptr;
}

// How often the program with this digest has left by a side exit, and in `calls` how often it was called.
CK_EXPORT int64_t ck_cpu_exits(const char* digest, int64_t* calls) {
  return CountExits(digest, calls);
}

// For tests: programs loaded so far in this process.
CK_EXPORT int64_t ck_cpu_load_count(void) {
  return LoadCount();
}
