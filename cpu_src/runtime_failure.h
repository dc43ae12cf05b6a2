// The handler with which a program compiled by XLA itself reports a failure, such as a recursion that is too
// deep. Attribute `text`: one line for each status except 0. Operand and result: int32 of one shape. If the
// operand is all 0, it is the result; else the call fails with the line of the first status that is not 0.
// Any module may call it, so it believes nothing about its buffers.
#ifndef COCKTAIL_RUNTIME_FAILURE_H
#define COCKTAIL_RUNTIME_FAILURE_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "cocktail_base.h"
#include "runtime_ffi.h"
#include "xla/ffi/api/c_api.h"

namespace {

XLA_FFI_Error* FailWithStatus(XLA_FFI_CallFrame* frame, const XLA_FFI_ByteSpan* lines, int32_t status) {
  char text[1024];
  size_t length;
  if (const char* line = LineOf(lines, status, &length)) {
    snprintf(text, sizeof(text), "jax_cocktail: %.*s", int(length < 900 ? length : 900), line);
  } else {
    snprintf(text, sizeof(text), "jax_cocktail: the program failed with status %d", int(status));
  }
  return Fail(frame, XLA_FFI_Error_Code_OUT_OF_RANGE, text);
}

// The number of elements of an int32 array; -1 for another type.
int64_t CountStatuses(const void* buffer) {
  auto* array = static_cast<const XLA_FFI_Buffer*>(buffer);
  int64_t count = 1;
  for (int64_t d = 0; d < array->rank; ++d) count *= array->dims[d];
  return array->dtype == XLA_FFI_DataType_S32 ? count : -1;
}

}  // namespace

CK_EXPORT XLA_FFI_Error* ck_cpu_failure(XLA_FFI_CallFrame* frame) {
  if (AnswerMetadata(frame, 0, XLA_FFI_TypeId{0})) return nullptr;
  auto* lines = static_cast<const XLA_FFI_ByteSpan*>(Attribute(frame, "text", XLA_FFI_AttrType_STRING));
  bool fits = lines != nullptr && frame->args.size == 1 && frame->rets.size == 1;
  int64_t count = fits ? CountStatuses(frame->args.args[0]) : -1;
  if (count < 0 || count != CountStatuses(frame->rets.rets[0])) {
    return Fail(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT,
                "jax_cocktail: the call takes one int32 array, returns one of its size, and needs the "
                "attribute text");
  }
  auto* status = static_cast<const int32_t*>(static_cast<const XLA_FFI_Buffer*>(frame->args.args[0])->data);
  for (int64_t i = 0; i < count; ++i) {
    if (status[i] != 0) return FailWithStatus(frame, lines, status[i]);
  }
  void* result = static_cast<const XLA_FFI_Buffer*>(frame->rets.rets[0])->data;
  if (count > 0) memmove(result, status, size_t(count) * sizeof(int32_t));
  return nullptr;
}

#endif  // COCKTAIL_RUNTIME_FAILURE_H
