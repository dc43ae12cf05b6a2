// Counts the bytes that a program loads and stores, by unit and by memory.
//
// The program is compiled with -fsanitize=thread, so it announces every access of memory; here is what it
// calls instead of the sanitizer. Registers, spilled ones among them, announce nothing, nor do atomic
// operations, with which units wait for each other.
typedef unsigned char u8;
typedef unsigned u32;
typedef long long i64;
typedef unsigned long long u64;

struct CkUnit {  // the beginning of the one in cpu_src/cocktail_units.h
  i64 index, count;
  u8* own;
};

extern "C" int ck_program(const void* const* operands, void* const* results, u8* workspace, CkUnit* unit);

namespace {

const i64 kMostUnits = 256, kMostMemories = 1024;

struct Memory {
  u64 begin, end;
};

// By memory: loaded and stored bytes. 0: any other; 1: the unit's own; then those of `memories`.
struct alignas(128) Counts {
  u64 bytes[kMostMemories + 2][2];
};

Memory memories[kMostMemories];
i64 memory_count, own_bytes;
Counts counts[kMostUnits];

thread_local Counts* mine;
thread_local Memory own;

void Count(const void* at, u64 size, int stored) {
  if (mine == nullptr) return;
  const u64 address = reinterpret_cast<u64>(at);
  i64 found = address - own.begin < own.end - own.begin;
  for (i64 i = 0; found == 0 && i < memory_count; ++i) {
    if (address - memories[i].begin < memories[i].end - memories[i].begin) found = i + 2;
  }
  mine->bytes[found][stored] += size;
}

}  // namespace

#define CK_ACCESS(NAME, SIZE, STORED) \
  extern "C" void __tsan_##NAME(void* at) { Count(at, SIZE, STORED); }
#define CK_ACCESSES(SIZE)                           \
  CK_ACCESS(read##SIZE, SIZE, 0)                    \
  CK_ACCESS(write##SIZE, SIZE, 1)                   \
  CK_ACCESS(unaligned_read##SIZE, SIZE, 0)          \
  CK_ACCESS(unaligned_write##SIZE, SIZE, 1)         \
  CK_ACCESS(volatile_read##SIZE, SIZE, 0)           \
  CK_ACCESS(volatile_write##SIZE, SIZE, 1)          \
  CK_ACCESS(unaligned_volatile_read##SIZE, SIZE, 0) \
  CK_ACCESS(unaligned_volatile_write##SIZE, SIZE, 1)
CK_ACCESSES(1)
CK_ACCESSES(2)
CK_ACCESSES(4)
CK_ACCESSES(8)
CK_ACCESSES(16)
extern "C" void __tsan_read_range(void* at, u64 size) { Count(at, size, 0); }
extern "C" void __tsan_write_range(void* at, u64 size) { Count(at, size, 1); }
// Copies of whole arrays, see counted.h.
extern "C" void* ck_traffic_copy(void* to, const void* from, u64 size) {
  Count(from, size, 0);
  Count(to, size, 1);
  return __builtin_memcpy(to, from, size);
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_vptr_update(void**, void*) {}

#define CK_ATOMICS(BITS, T)                                                    \
  extern "C" T __tsan_atomic##BITS##_load(const volatile T* at, int) {         \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                              \
  }                                                                            \
  extern "C" void __tsan_atomic##BITS##_store(volatile T* at, T value, int) {  \
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                             \
  }                                                                            \
  extern "C" T __tsan_atomic##BITS##_fetch_add(volatile T* at, T value, int) { \
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                    \
  }
CK_ATOMICS(32, u32)
CK_ATOMICS(64, u64)
extern "C" void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// What a call will touch: `begins` and `bytes` of `count` arrays. Forgets what was counted before.
extern "C" void ck_traffic_begin(const u64* begins, const u64* bytes, i64 count, i64 own) {
  memory_count = count;
  own_bytes = own;
  for (i64 i = 0; i < count; ++i) memories[i] = {begins[i], begins[i] + bytes[i]};
  for (i64 i = 0; i < kMostUnits; ++i) counts[i] = {};
}

// In place of ck_program.
extern "C" int ck_traffic_program(const void* const* operands, void* const* results, u8* workspace,
                                  CkUnit* unit) {
  own = {reinterpret_cast<u64>(unit->own), reinterpret_cast<u64>(unit->own) + u64(own_bytes)};
  mine = &counts[unit->index];
  const int code = ck_program(operands, results, workspace, unit);
  mine = nullptr;
  return code;
}

// Of a unit: loaded and stored bytes of each of memory_count + 2 memories.
extern "C" const u64* ck_traffic_counts(i64 unit) { return counts[unit].bytes[0]; }
