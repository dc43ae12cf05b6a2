// Calls of programs: memory, and as many units as there is work and cores for.
#ifndef COCKTAIL_RUNTIME_UNITS_H
#define COCKTAIL_RUNTIME_UNITS_H

#include "runtime_alone.h"
#include "runtime_team.h"

namespace {

// `units` > 0: exactly this many if the program has work for them; 0: as many as are idle. Returns false if
// there is no memory.
bool RunProgram(Entry* entry, const void* const* operands, void* const* results, const Given& given,
                i64 units, End* end) {
  pthread_once(&prepare_once, Prepare);
  u64 now = Nanoseconds();
  i64 most = entry->most_units > 1 ? MostUnitsOfACall(now) : 1;
  i64 wanted = units > 0 ? units : most;
  if (wanted > entry->most_units) wanted = entry->most_units;
  if (wanted > CK_MOST_UNITS) wanted = CK_MOST_UNITS;
  if (wanted < 1) wanted = 1;
  const i64 page = i64(kPage), huge = i64(1) << 52;
  u8* workspace = given.workspace;
  const i64 workspace_bytes = given.workspace_bytes;
  if (given.own_bytes > huge || workspace_bytes > huge) return false;
  i64 stride = (given.own_bytes + page - 1) / page * page, own_start = 0, bytes = wanted * stride;
  if (workspace == nullptr && workspace_bytes > 0) {
    own_start = stride ? (workspace_bytes + page - 1) / page * page : workspace_bytes;
    bytes += own_start;
  }
  Arena arena = {nullptr, 0, 0};
  if (bytes > 0) {
    arena = LeaseArena(size_t(bytes));
    if (arena.memory == nullptr) return false;
  }
  if (own_start > 0) workspace = arena.memory;
  u8* own = stride ? arena.memory + own_start : nullptr;
  Run* run = BeginRun(now);
  if (wanted == 1) {
    end->code = RunAlone(entry, operands, results, workspace, own, given.sizes, run, now);
  } else {
    Worker* workers[CK_MOST_UNITS];
    i64 got = LeaseWorkers(wanted - 1, most, units > 0, now, workers);
    if (got == 0) {
      end->code = RunAlone(entry, operands, results, workspace, own, given.sizes, run, now);
    } else {
      Team team = {};
      team.entry = entry;
      team.operands = operands;
      team.results = results;
      team.workspace = workspace;
      team.own = own;
      team.stride = stride;
      team.sizes = given.sizes;
      team.exact = units > 0;
      team.run = run;
      end->code = RunTeam(&team, got, workers, got < Cores(now), now);
    }
    ReturnWorkers(got, workers, got + 1);
  }
  ReturnArena(arena);
  if (IsStopped(run)) *end = End{0, run->reason, run->loop, run->trip, run->limit};
  EndRun(run);
  return true;
}

}  // namespace

// Sets the number of units of a call: `units`, or as many as affinity and quota allow if it is 0.
CK_EXPORT void ck_cpu_set_units(i64 units) {
  __atomic_store_n(&chosen_units, units > 0 ? units : 0, __ATOMIC_RELAXED);
  __atomic_store_n(&usable_cores, 0, __ATOMIC_RELAXED);
}

CK_EXPORT i64 ck_cpu_units(void) { return MostUnitsOfACall(Nanoseconds()); }

// The units that a call may have now, fewer while other processes take cores. `lost`: calls that have lost
// units.
CK_EXPORT i64 ck_cpu_units_now(i64* lost) {
  u64 now = Nanoseconds();
  pthread_mutex_lock(&pool_mutex);
  *lost = pause_of_pool.count;
  i64 units = UnitsNow(MostUnitsOfACall(now), now);
  pthread_mutex_unlock(&pool_mutex);
  return units;
}

// For tests and tools: a call without XLA on exactly `units` units (0: on the idle ones), if the program has
// work for them and the system has threads. Returns the program's code, or -1 if there is no memory.
CK_EXPORT int ck_cpu_run(const void* function, i64 most_units, i64 own_bytes, const i64* sizes,
                         const void* const* operands, void* const* results, u8* workspace, i64 units) {
  End end = {};
  auto* program = reinterpret_cast<ProgramFunction*>(const_cast<void*>(function));
  Entry entry = {program, most_units, 0, 0};
  return RunProgram(&entry, operands, results, {workspace, 0, own_bytes, sizes}, units, &end) ? end.code : -1;
}

#endif  // COCKTAIL_RUNTIME_UNITS_H
