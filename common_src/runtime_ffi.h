// Code of all targets' FFI handlers, in XLA's C API: errors, attributes, the answer to version queries.
#ifndef COCKTAIL_RUNTIME_FFI_H
#define COCKTAIL_RUNTIME_FFI_H

#include <stdint.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

namespace {

XLA_FFI_Error* Fail(XLA_FFI_CallFrame* frame, XLA_FFI_Error_Code code, const char* text) {
  XLA_FFI_Error_Create_Args args;
  memset(&args, 0, sizeof(args));
  args.struct_size = sizeof(args);
  args.message = text;
  args.errc = code;
  return frame->api->XLA_FFI_Error_Create(&args);
}

const void* Attribute(const XLA_FFI_CallFrame* frame, const char* name, XLA_FFI_AttrType type) {
  size_t length = strlen(name);
  for (int64_t i = 0; i < frame->attrs.size; ++i) {
    const XLA_FFI_ByteSpan* span = frame->attrs.names[i];
    if (span->len == length && memcmp(span->ptr, name, length) == 0) {
      return frame->attrs.types[i] == type ? frame->attrs.attrs[i] : nullptr;
    }
  }
  return nullptr;
}

bool IntegerAttribute(const XLA_FFI_CallFrame* frame, const char* name, int64_t* value) {
  auto* scalar = static_cast<const XLA_FFI_Scalar*>(Attribute(frame, name, XLA_FFI_AttrType_SCALAR));
  if (scalar == nullptr || scalar->dtype != XLA_FFI_DataType_S64) return false;
  memcpy(value, scalar->value, sizeof(*value));
  return true;
}

const XLA_FFI_Array* ArrayAttribute(const XLA_FFI_CallFrame* frame, const char* name, XLA_FFI_DataType type) {
  auto* array = static_cast<const XLA_FFI_Array*>(Attribute(frame, name, XLA_FFI_AttrType_ARRAY));
  return array != nullptr && array->dtype == type ? array : nullptr;
}

// Line `number` of a text, counted from 1, and its length; null if there is none.
const char* LineOf(const XLA_FFI_ByteSpan* text, int64_t number, size_t* length) {
  const char* line = text->ptr;
  const char* const end = line + text->len;
  while (number > 0 && line < end) {
    auto* next = static_cast<const char*>(memchr(line, '\n', size_t(end - line)));
    if (--number == 0) {
      *length = size_t((next ? next : end) - line);
      return *length > 0 ? line : nullptr;
    }
    line = next ? next + 1 : end;
  }
  return nullptr;
}

// Answers XLA's question for the API version and the traits of a handler; false if that was not the question.
bool AnswerMetadata(XLA_FFI_CallFrame* frame, XLA_FFI_Handler_Traits traits, XLA_FFI_TypeId state_type_id) {
  auto* start = frame->extension_start;
  if (start == nullptr || start->type != XLA_FFI_Extension_Metadata) return false;
  auto* extension = reinterpret_cast<XLA_FFI_Metadata_Extension*>(start);
  extension->metadata->api_version.major_version = 0;
  extension->metadata->api_version.minor_version = 1;
  extension->metadata->traits = traits;
  extension->metadata->state_type_id = state_type_id;
  return true;
}

}  // namespace

#endif  // COCKTAIL_RUNTIME_FFI_H
