// A GPU on a host compiler: blocks and their threads are fibers of one OS thread, switched only where they
// wait for each other (gpu_emulation.cc), so that a launch is the same every time for the same seed. What a
// target's text names differently stands in a file of its own (cuda_emulation.h). No standard header.
#ifndef GPU_EMULATION_H
#define GPU_EMULATION_H

#if !defined(CK_EMULATED_WARP)
#define CK_EMULATED_WARP 32  // lanes of a warp; 64 at most
#endif

struct uint3 { unsigned x, y, z; };

namespace ck_emulation {

// What the running thread of the grid knows of itself.
struct Here {
  uint3 thread, block, threads, blocks;
  unsigned char* arena;  // shared memory of its block
  int cluster_rank, cluster_size;
};
extern Here* here;

// What a program is, for the runtime; CK_ENTRIES defines it.
struct Program {
  int threads, operands, results, most_units, resident_units, sizes;
  int own_size;  // the launch parameter with the bytes of own memory, or -1: own_bytes
  long long header_bytes, front_bytes, shared_bytes, own_bytes, scratch_bytes, resident_bytes;
  void (*kernels[2])(const void* launch);  // resident, portable
};
extern "C" const Program ck_emulation_program;

// Where the text waits, for reports.
struct Place {
  const char* file;
  int line;
};
#define CK_PLACE const char *ck_file = __builtin_FILE(), int ck_line = __builtin_LINE()
#define CK_PLACED ck_file, ck_line

// Lanes of a warp as bits.
typedef unsigned long long Lanes;
enum { WARP = CK_EMULATED_WARP };
constexpr Lanes ALL_LANES = ~0ull >> (64 - WARP);
enum { LANE_BYTES = 64 };

// All lanes of `mask` meet and each sees what the others brought: bytes [lane][LANE_BYTES], valid until this
// lane's next meeting. `lanes`: who came. Orders no memory, as on the device.
struct Gathered {
  const unsigned char (*bytes)[LANE_BYTES];
  Lanes lanes;
};
Gathered gather(const char* what, Lanes mask, const void* mine, int bytes, Place place);

int meet_block(int vote, Place place);                  // a block barrier; the sum of the votes
void meet_warp(Lanes mask, Place place);                // a barrier of a warp's lanes
void arrive_cluster(Place place);                       // and releases
void wait_cluster(Place place);                         // and acquires
unsigned char* remote(void* shared, int rank, Place place);
// Lets others run between two polls; `first` of a wait, `bounded` by a limit of its own.
void poll_failed(const char* what, bool first, bool bounded, Place place);
void rest(Place place);                                 // lets others run
[[noreturn]] void fail(const char* what, Place place);
bool is_global(const void* at);

// Asynchronous copies of a thread: next_copy hands out those of all groups but the last `groups`.
struct Copy {
  void* to;
  const void* from;
  int bytes, group;
  bool valid;
};
void defer_copy(void* to, const void* from, int bytes, bool valid, Place place);
void commit_copies();
bool next_copy(int groups, Copy* copy);
long long ticks();

template <class T>
T lane_value(const Gathered& all, int lane, const char* what, Place place) {
  if (!(all.lanes >> lane & 1)) fail(what, place);
  T value;
  __builtin_memcpy(&value, all.bytes[lane], sizeof(T));
  return value;
}

template <class T>
T shuffle(const char* what, Lanes mask, T value, int source, Place place) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles are of 4 and 8 bytes");
  Gathered all = gather(what, mask, &value, int(sizeof(T)), place);
  return lane_value<T>(all, source, "a shuffle reads from a lane that does not take part", place);
}

static inline int lane() { return int(here->thread.x % WARP); }
static inline Lanes ballot(const char* what, Lanes mask, bool vote, Place place) {
  Gathered all = gather(what, mask, &vote, 1, place);
  Lanes votes = 0;
  for (int i = 0; i < WARP; ++i) votes |= Lanes((all.lanes >> i & 1) && all.bytes[i][0]) << i;
  return votes;
}

template <class T, class Op>
T fold(const char* what, Lanes mask, T value, Op op, Place place) {
  Gathered all = gather(what, mask, &value, int(sizeof(T)), place);
  bool first = true;
  T total = value;
  for (int i = 0; i < WARP; ++i) {
    if (!(all.lanes >> i & 1)) continue;
    T other = lane_value<T>(all, i, what, place);
    total = first ? other : op(total, other);
    first = false;
  }
  return total;
}

template <class T, class Op>
T update(T* at, Op op) {
  T old, next;
  __atomic_load(at, &old, __ATOMIC_RELAXED);
  do {
    next = op(old);
  } while (!__atomic_compare_exchange(at, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}

}  // namespace ck_emulation

#endif  // GPU_EMULATION_H
