// Runs the blocks of a program on strands. One OS thread; a thread of the grid runs until it waits for
// others, and who runs next follows from the seed alone. Compiled without instrumentation: the sanitizers see
// the threads of the grid as threads and only the orderings that the device promises, so the thread sanitizer
// finds races inside a block as well as between blocks.
#include <sys/mman.h>
#include <time.h>

#include "gpu_emulation_grid.h"

namespace ck_emulation {
namespace {

// Memory for the device: as its first user may find it, and watched behind its end.
struct Memory {
  unsigned char* bytes = nullptr;
  long long size = 0;
  explicit Memory(long long wanted) : size(wanted) {
    void* made = nullptr;
#if defined(CK_ASAN)
    long long all = size;
#else
    long long all = size + CANARY;
#endif
    if (posix_memalign(&made, 256, size_t(all ? all : 1))) abort();
    bytes = static_cast<unsigned char*>(made);
    memset(bytes, 0xff, size_t(all));
  }
  Memory(Memory&& other) : bytes(other.bytes), size(other.size) { other.bytes = nullptr; }
  ~Memory() { free(bytes); }
  bool overrun() const {
#if !defined(CK_ASAN)
    for (int i = 0; i < CANARY; ++i) {
      if (bytes[size + i] != 0xff) return true;
    }
#endif
    return false;
  }
};

char* make_stacks(size_t count, size_t bytes, size_t* all) {
  *all = count * (bytes + GUARD);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* made = mmap(nullptr, *all, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (made == MAP_FAILED) return nullptr;
  char* stacks = static_cast<char*>(made);
  for (size_t i = 0; i < count; ++i) {
    if (mprotect(stacks + i * (bytes + GUARD), GUARD, PROT_NONE)) {
      munmap(stacks, *all);
      return nullptr;
    }
  }
  return stacks;
}

void make_fibers(Grid& g, const Order& order, char* stacks) {
  unsigned threads = unsigned(ck_emulation_program.threads), units = unsigned(order.units);
  g.fibers.resize(size_t(units) * threads);
  for (unsigned i = 0; i < units * threads; ++i) {
    Fiber& f = g.fibers[i];
    Block& block = g.blocks[i / threads];
    int rank = block.index % order.cluster;
    f.here = {{i % threads, 0, 0}, {i / threads, 0, 0}, {threads, 1, 1}, {units, 1, 1}, block.arena,
              rank,                 order.cluster};
    char* stack = stacks + size_t(i) * size_t(order.stack_bytes + GUARD) + GUARD;
    f.block = &block;
    f.state = State::READY;
    f.what = "its start";
    f.mask = ALL_LANES;
    f.table = nullptr;
    f.polled_at = 0;
    f.cluster_epoch = f.group = 0;
    std::string name = format("block %u, thread %u", i / threads, i % threads);
    make_strand(&f.strand, stack, size_t(order.stack_bytes), run_thread, name.c_str());
    g.ring.push_back(&f);
  }
  g.alive = g.ready = g.fibers.size();
}

void make_blocks(Grid& g, const Order& order, std::vector<Memory>& arenas, Table* tables) {
  const Program& program = ck_emulation_program;
  g.clusters.resize(size_t(order.units / order.cluster));
  for (Cluster& cluster : g.clusters) cluster = {0, 0, order.cluster * program.threads, {}};
  g.blocks.resize(size_t(order.units));
  for (int i = 0; i < order.units; ++i) {
    Block& block = g.blocks[size_t(i)];
    block = Block{};
    block.index = i;
    block.arena = arenas[size_t(i)].bytes;
    block.cluster = &g.clusters[size_t(i / order.cluster)];
    block.warps.resize(size_t(program.threads / WARP));
    for (Warp& warp : block.warps) {
      warp.tables = tables;
      tables += TABLES;
    }
  }
}

std::string refusal(const Order& order) {
  const Program& program = ck_emulation_program;
  if (order.units < 1 || order.units > program.most_units) {
    return format("%d units, but the program takes 1 to %d", order.units, program.most_units);
  }
  if (order.resident && order.units < program.resident_units) {
    return format("ck_resident runs with at least %d units, not %d", program.resident_units, order.units);
  }
  if (order.cluster < 1 || order.cluster > 16 || order.units % order.cluster) {
    return format("clusters of %d blocks do not divide a grid of %d", order.cluster, order.units);
  }
  return "";
}

std::string launch(Order& order) {
  const Program& program = ck_emulation_program;
  std::string refused = refusal(order);
  if (!refused.empty()) return refused;
  long long own = order.resident ? 0 : own_bytes(order) * order.units;
  if (program.sizes > 0 && program.shared_bytes == 0) own = (own + 255) / 256 * 256;  // kCkOwnFirst
  Memory workspace(program.front_bytes + own + program.shared_bytes + order.shared_bytes);
  memset(workspace.bytes, 0, size_t(program.header_bytes));
  std::vector<Memory> arenas;
  for (int i = 0; i < order.units; ++i) arenas.emplace_back(arena_bytes(order));
  size_t threads = size_t(order.units) * size_t(program.threads), stacks_bytes = 0;
  char* stacks = make_stacks(threads, size_t(order.stack_bytes), &stacks_bytes);
  if (!stacks) return "no memory for so many threads' stacks: launch fewer units, or with fewer stack_bytes";
  Grid* made = new Grid{};  // given up if the launch fails: its fibers still stand in it
  Grid& g = *made;
  g.order = &order;
  g.random = order.seed;
  g.stacks = stacks;
  g.stacks_bytes = stacks_bytes;
  grid = &g;
  g.launch.assign(order.pointers, order.pointers + program.operands + program.results);
  g.launch.push_back(order.workspace ? order.workspace : workspace.bytes);
  g.launch.push_back(&order.error);
  for (int i = 0; i < program.sizes; ++i) g.launch.push_back(reinterpret_cast<void*>(order.sizes[i]));
  size_t warps = size_t(order.units) * size_t(program.threads / WARP);
  Table* tables = static_cast<Table*>(calloc(warps * TABLES, sizeof(Table)));
  make_blocks(g, order, arenas, tables);
  make_fibers(g, order, stacks);
  adopt(&g.scheduler);
  __tsan_release(&g.start);
  schedule();
  __tsan_acquire(&g.end);
  for (Fiber& fiber : g.fibers) discard(&fiber.strand);
  munmap(stacks, stacks_bytes);
  if (g.failed) return g.report;
  delete made;
  free(tables);
  if (workspace.overrun()) return "the workspace was written behind its end";
  for (int i = 0; i < order.units; ++i) {
    if (arenas[size_t(i)].overrun()) return format("block %d wrote behind the end of its shared memory", i);
  }
  return "";
}

}  // namespace

void fail(const char* what, Place place) {
  stop(std::string(what) + ": " + who(*now) + " (" + spell(place) + ")");
  leave(State::DONE);
  abort();
}

// Lanes of `mask` meet. The last one to come deals out what they brought.
static void meet_lanes(const char* what, Lanes mask, Place place) {
  Fiber& me = *now;
  Warp& warp = me.block->warps[me.here.thread.x / WARP];
  unsigned lane = me.here.thread.x % WARP;
  Fiber* first = &me - lane;
  if (!(mask >> lane & 1)) fail("a thread that its own lane mask leaves out", place);
  me.mask = mask;
  moved();
  if (me.table) --me.table->readers;
  me.table = nullptr;
  Lanes here = Lanes(1) << lane;  // others may still be at an earlier meeting, of other lanes
  for (int i = 0; i < WARP; ++i) {
    const Fiber& other = first[i];
    bool waits = other.state == State::WAITING && other.mask == mask && !strcmp(other.what, what);
    here |= Lanes(waits) << i;
  }
  if ((here & mask) != mask) {
    wait(what, place);
    me.mask = ALL_LANES;
    return;
  }
  Table* table = warp.tables;
  while (table->readers) ++table;
  table->readers = __builtin_popcountll(mask);
  for (int i = 0; i < WARP; ++i) {
    if (!(mask >> i & 1)) continue;
    copy_bytes(table->bytes[i], first[i].mine, LANE_BYTES);
    first[i].table = table;
    if (&first[i] != &me) wake(first[i]);
  }
  me.mask = ALL_LANES;
}

Gathered gather(const char* what, Lanes mask, const void* mine, int bytes, Place place) {
  copy_bytes(now->mine, static_cast<const unsigned char*>(mine), bytes);
  meet_lanes(what, mask, place);
  return {now->table->bytes, mask};
}

void meet_warp(Lanes mask, Place place) {
  Warp& warp = now->block->warps[now->here.thread.x / WARP];
  Meeting* meeting = nullptr;
  for (Meeting& m : warp.meetings) {
    if (m.mask == mask) meeting = &m;
  }
  if (!meeting) {
    warp.meetings.push_back({mask, 0, {}});
    meeting = &warp.meetings.back();
  }
  char* order = &meeting->orders[meeting->arrivals / unsigned(__builtin_popcountll(mask)) & 1];
  ++meeting->arrivals;
  __tsan_release(order);
  meet_lanes("__syncwarp", mask, place);
  __tsan_acquire(order);
}

int meet_block(int vote, Place place) {
  Block& block = *now->block;
  int parity = block.epoch & 1;
  __tsan_release(&block.orders[parity]);
  if (block.ended) fail("threads of this block have ended before this __syncthreads", place);
  if (block.waiting == 0) block.place = place;
  if (!same(block.place, place)) fail(("others of the block are at " + spell(block.place)).c_str(), place);
  block.votes += vote;
  moved();
  if (++block.waiting == ck_emulation_program.threads) {
    block.result[parity] = block.votes;
    block.waiting = block.votes = 0;
    ++block.epoch;
    Fiber* first = now - now->here.thread.x;
    for (int i = 0; i < ck_emulation_program.threads; ++i) {
      if (first + i != now) wake(first[i]);
    }
  } else {
    wait("__syncthreads", place);
  }
  __tsan_acquire(&block.orders[parity]);
  return block.result[parity];
}

void arrive_cluster(Place place) {
  Cluster& cluster = *now->block->cluster;
  if (now->cluster_epoch > cluster.epoch) fail("arrives twice at the cluster barrier without waiting", place);
  __tsan_release(&cluster.orders[cluster.epoch & 1]);
  now->cluster_epoch = cluster.epoch + 1;
  moved();
  if (++cluster.arrived < cluster.members) return;
  cluster.arrived = 0;
  ++cluster.epoch;
  for (Fiber& fiber : grid->fibers) {
    bool waits = fiber.state == State::WAITING && !strcmp(fiber.what, "the cluster barrier");
    if (waits && fiber.block->cluster == &cluster) wake(fiber);
  }
}

void wait_cluster(Place place) {
  Cluster& cluster = *now->block->cluster;
  if (cluster.epoch < now->cluster_epoch) wait("the cluster barrier", place);
  __tsan_acquire(&cluster.orders[(now->cluster_epoch - 1) & 1]);
}

static bool is_shared(const void* at) {
  unsigned char* arena = now->here.arena;
  return at >= arena && at < arena + arena_bytes(*grid->order);
}

unsigned char* remote(void* shared, int rank, Place place) {
  Here& here = now->here;
  if (!is_shared(shared)) fail("the address is not in the block's shared memory", place);
  if (rank < 0 || rank >= here.cluster_size) fail("the cluster has no block of this rank", place);
  Block& theirs = grid->blocks[size_t(now->block->index - here.cluster_rank + rank)];
  return theirs.arena + (static_cast<unsigned char*>(shared) - here.arena);
}

void poll_failed(const char* what, bool first, bool bounded, Place place) {
  Fiber& me = *now;
  if (first || bounded) moved();
  if (!bounded && me.polled_at != grid->progress + 1) ++grid->stale;
  me.polled_at = grid->progress + 1;
  me.what = what;
  me.place = place;
  leave(State::POLLING);
}

void rest(Place place) {
  moved();
  now->place = place;
  leave(State::READY);
}

bool is_global(const void* at) {
  return !is_shared(at) && (at < grid->stacks || at >= grid->stacks + grid->stacks_bytes);
}

void defer_copy(void* to, const void* from, int bytes, bool valid, Place place) {
  uintptr_t both = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  if (both % unsigned(bytes)) fail("an asynchronous copy needs addresses on borders of its size", place);
  if (!is_shared(to)) fail("an asynchronous copy to memory that is not the block's shared memory", place);
  if (!is_global(from)) fail("an asynchronous copy from memory that is not global", place);
  now->copies.push_back({to, from, bytes, now->group, valid});
}

void commit_copies() { ++now->group; }

bool next_copy(int groups, Copy* copy) {
  std::vector<Copy>& copies = now->copies;
  if (copies.empty() || copies.front().group >= now->group - groups) return false;
  *copy = copies.front();
  copies.erase(copies.begin());
  return true;
}

long long ticks() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

extern "C" __attribute__((visibility("default"))) int ck_emulation_launch(Order* order) {
  std::string report = launch(*order);
  snprintf(order->report, size_t(order->report_bytes), "%s", report.c_str());
  return !report.empty();
}

// What a launch on a card has: operands, results, workspace, error word; and behind them so many sizes.
extern "C" __attribute__((visibility("default"))) int ck_emulation_pointers() {
  return ck_emulation_program.operands + ck_emulation_program.results + 2;
}
extern "C" __attribute__((visibility("default"))) int ck_emulation_sizes() {
  return ck_emulation_program.sizes;
}

}  // namespace ck_emulation
