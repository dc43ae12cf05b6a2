// Stops a call while it runs: on Ctrl-C, or when its time is over.
//
// A program looks at the alarm of its call in every step of a recursion, and in every iteration, or every few
// short ones, of a loop that may take long. An alarm is a question, not an order: the unit that sees it asks
// here whether the call stops, and leaves the program if so. The other units see the alarm too, or find at
// their next barrier that a unit has left.
//
// Alarms are words of a table that is never freed, so a signal handler and the timer may set those of calls
// that end at the same moment. Such an alarm finds no reason and is taken back.
#ifndef COCKTAIL_RUNTIME_STOP_H
#define COCKTAIL_RUNTIME_STOP_H

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime_threads.h"

namespace {

const int kMostRuns = 256;                      // calls at a time that can be stopped
const u64 kTimerNanoseconds = 2000000;          // between two looks of the timer
const u64 kLookAtHandlerNanoseconds = 1000000;  // Python installs its handler again whenever a user sets one

const u64 kAboveAnyTop = 0x7fffffff;            // the lower half of an alarm that rings: see `ck_may_end`

enum StopReason : int { kGoesOn = 0, kInterrupted = 1, kTimeIsOver = 2 };

// A running call.
struct alignas(128) Run {
  u64 alarm;     // StopReasons that were raised since the units last asked, in the upper half
  u32 used;      // by a call
  bool hears;    // Ctrl-C
  bool foreign;  // XLA's thread runs it: which thread of Python has made it is not known
  u64 begin;     // nanoseconds; 0: no limit, now and later
  u64 limit;     // of the call when it began, nanoseconds; when it is stopped, the one that stopped it
  int reason;    // why it stops
  i64 loop;      // where the first unit left: the number of the loop, and its iterations so far
  i64 trip;      // -1: not counted
};

Run runs[kMostRuns];
const u64 never_raised = 0;
__thread int last_run = 0;  // of this thread: often free again

// ---- Ctrl-C ---------------------------------------------------------------------------------------------

// Python's C API; null: this process has none, and Ctrl-C is not heard.
struct Python {
  int (*ensure)(void);  // PyGILState_Ensure
  void (*release)(int);
  void* (*state_of_thread)(void);  // PyGILState_GetThisThreadState
  void* (*call)(void* function, const char* format, ...);  // PyObject_CallFunction
  void (*drop)(void*);                                      // Py_DecRef
  void (*forget_error)(void);                               // PyErr_Clear
  void* handler_of;    // _signal.getsignal
  void* raises;        // _signal.default_int_handler, which raises KeyboardInterrupt
};
Python python = {};
struct sigaction of_python;  // what Python does when the signal comes
bool knows_python = false;
u64 looked_at_handler = 0;
pthread_mutex_t handler_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t question_mutex = PTHREAD_MUTEX_INITIALIZER;

void Raise(Run* run, StopReason reason) {
  __atomic_fetch_or(&run->alarm, u64(reason) << 32 | kAboveAnyTop, __ATOMIC_RELEASE);
}

void OnInterrupt(int signal, siginfo_t* info, void* context) {
  int before = errno;
  for (Run& run : runs) {
    if (__atomic_load_n(&run.used, __ATOMIC_ACQUIRE) && run.hears) Raise(&run, kInterrupted);
  }
  if (of_python.sa_flags & SA_SIGINFO) {
    of_python.sa_sigaction(signal, info, context);
  } else {
    of_python.sa_handler(signal);
  }
  errno = before;
}

bool IsPythons(const struct sigaction& action) {
  bool with_info = action.sa_flags & SA_SIGINFO;
  if (with_info != bool(of_python.sa_flags & SA_SIGINFO)) return false;
  return with_info ? action.sa_sigaction == of_python.sa_sigaction
                   : action.sa_handler == of_python.sa_handler;
}

// Comes before Python's handler, unless somebody else's handler, or none, is installed.
void HearInterrupts(u64 now) {
  if (!knows_python) return;
  u64 looked = __atomic_load_n(&looked_at_handler, __ATOMIC_RELAXED);
  if (now < looked + kLookAtHandlerNanoseconds) return;
  if (pthread_mutex_trylock(&handler_mutex) != 0) return;
  __atomic_store_n(&looked_at_handler, now, __ATOMIC_RELAXED);
  struct sigaction action;
  if (sigaction(SIGINT, nullptr, &action) == 0 && IsPythons(action)) {
    action.sa_flags |= SA_SIGINFO;
    action.sa_sigaction = OnInterrupt;
    sigaction(SIGINT, &action, nullptr);
  }
  pthread_mutex_unlock(&handler_mutex);
}

// A handler of the user's may mean something else than to end the program.
bool InterruptRaises() {
  int state = python.ensure();
  void* handler = python.call(python.handler_of, "i", SIGINT);
  bool raises = handler == python.raises;
  if (handler == nullptr) {
    python.forget_error();
  } else {
    python.drop(handler);
  }
  python.release(state);
  return raises;
}

// KeyboardInterrupt is raised in Python's main thread. So a call that another thread of Python has made does
// not stop. XLA's threads run calls for the others.
enum ThreadKind : char { kUnknown, kMain, kOfPython, kOfXla };
__thread ThreadKind kind_of_thread = kUnknown;

ThreadKind KindOfThread() {
  if (kind_of_thread == kUnknown) {
    bool main = syscall(SYS_gettid) == getpid();
    bool foreign = python.state_of_thread == nullptr || python.state_of_thread() == nullptr;
    kind_of_thread = main ? kMain : foreign ? kOfXla : kOfPython;
  }
  return kind_of_thread;
}

// ---- limits of time -------------------------------------------------------------------------------------

const i64 kNotSet = -1;
i64 usual_limit = 0;     // nanoseconds; 0: none
i64 longest_limit = kNotSet;  // of the threads of Python that have one: for the calls that XLA's threads run
__thread i64 limit_of_thread = kNotSet;

pthread_mutex_t timer_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t timer_wakes = PTHREAD_COND_INITIALIZER;
i64 limited_runs = 0;
bool has_timer = false;

// Nanoseconds; 0: none. A foreign call may be any thread's that waits for its results, so the longest counts.
u64 LimitOf(const Run* run) {
  bool foreign = __atomic_load_n(&run->foreign, __ATOMIC_RELAXED);
  i64 longest = foreign ? __atomic_load_n(&longest_limit, __ATOMIC_RELAXED) : kNotSet;
  return longest == kNotSet ? __atomic_load_n(&run->limit, __ATOMIC_RELAXED) : u64(longest);
}

void* Timer(void*) {
  for (;;) {
    pthread_mutex_lock(&timer_mutex);
    while (limited_runs == 0) pthread_cond_wait(&timer_wakes, &timer_mutex);
    pthread_mutex_unlock(&timer_mutex);
    Sleep(kTimerNanoseconds);
    u64 now = Nanoseconds();
    for (Run& run : runs) {
      if (!__atomic_load_n(&run.used, __ATOMIC_ACQUIRE)) continue;
      u64 begin = __atomic_load_n(&run.begin, __ATOMIC_RELAXED);
      u64 limit = LimitOf(&run);
      if (begin != 0 && limit != 0 && now >= begin + limit) Raise(&run, kTimeIsOver);
    }
  }
}

void CountLimited(i64 change) {
  pthread_mutex_lock(&timer_mutex);
  limited_runs += change;
  pthread_t thread;
  if (!has_timer) has_timer = StartThread(&thread, Timer, nullptr, nullptr);
  pthread_cond_signal(&timer_wakes);
  pthread_mutex_unlock(&timer_mutex);
}

// ---- calls ----------------------------------------------------------------------------------------------

// nullptr: too many calls run; this one cannot be stopped.
Run* BeginRun(u64 now) {
  HearInterrupts(now);
  for (int i = 0; i < kMostRuns; ++i) {
    Run* run = &runs[(last_run + i) % kMostRuns];
    u32 free = 0;
    if (!__atomic_compare_exchange_n(&run->used, &free, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
      continue;
    }
    last_run = int(run - runs);
    ThreadKind kind = KindOfThread();
    run->hears = knows_python && kind != kOfPython;
    __atomic_store_n(&run->foreign, kind == kOfXla && limit_of_thread == kNotSet, __ATOMIC_RELAXED);
    run->reason = kGoesOn;
    i64 usual = __atomic_load_n(&usual_limit, __ATOMIC_RELAXED);
    i64 own = run->foreign ? __atomic_load_n(&longest_limit, __ATOMIC_RELAXED) : limit_of_thread;
    __atomic_store_n(&run->limit, u64(own == kNotSet ? usual : own), __ATOMIC_RELAXED);
    if (run->limit != 0 || (run->foreign && own != kNotSet)) {  // 0: a shorter one may count later
      __atomic_store_n(&run->begin, now, __ATOMIC_RELAXED);
      CountLimited(1);
    }
    return run;
  }
  return nullptr;
}

void EndRun(Run* run) {
  if (run == nullptr) return;
  if (run->begin != 0) {
    __atomic_store_n(&run->begin, 0, __ATOMIC_RELAXED);
    CountLimited(-1);
  }
  __atomic_store_n(&run->alarm, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&run->used, 0, __ATOMIC_RELEASE);
}

const u64* AlarmOf(const Run* run) { return run == nullptr ? &never_raised : &run->alarm; }

bool IsStopped(const Run* run) {
  return run != nullptr && __atomic_load_n(&run->reason, __ATOMIC_ACQUIRE) != kGoesOn;
}

// A unit saw the alarm of its call. Returns whether it leaves. Units that ask while another one does ask
// again in their next iteration.
bool AsksToStop(Run* run, i64 loop, i64 trip) {
  if (IsStopped(run)) return true;
  if (pthread_mutex_trylock(&question_mutex) != 0) return false;
  if (!IsStopped(run)) {
    u64 raised = __atomic_exchange_n(&run->alarm, 0, __ATOMIC_ACQUIRE) >> 32;
    int reason = kGoesOn;
    u64 limit = LimitOf(run);
    if ((raised & kTimeIsOver) && run->begin != 0 && limit != 0 && Nanoseconds() >= run->begin + limit) {
      __atomic_store_n(&run->limit, limit, __ATOMIC_RELAXED);
      reason = kTimeIsOver;
    }
    if ((raised & kInterrupted) && run->hears && InterruptRaises()) reason = kInterrupted;
    if (reason != kGoesOn) {
      run->loop = loop;
      run->trip = trip;
      __atomic_store_n(&run->reason, reason, __ATOMIC_RELEASE);
      Raise(run, StopReason(reason));  // for the other units
    }
  }
  pthread_mutex_unlock(&question_mutex);
  return IsStopped(run);
}

// A child of fork() has this thread alone, and it runs no call.
void ForgetRuns() {
  memset(runs, 0, sizeof(runs));
  kind_of_thread = kUnknown;
  limited_runs = 0;
  has_timer = false;
  pthread_mutex_init(&handler_mutex, nullptr);
  pthread_mutex_init(&question_mutex, nullptr);
  pthread_mutex_init(&timer_mutex, nullptr);
  pthread_cond_init(&timer_wakes, nullptr);
}

}  // namespace

// Lets Ctrl-C stop calls. `api`: functions and objects in the order of Python; Python's handler is installed.
CK_EXPORT void ck_cpu_hear(void* const* api) {
  memcpy(static_cast<void*>(&python), api, sizeof(python));
  knows_python = sigaction(SIGINT, nullptr, &of_python) == 0;
  HearInterrupts(Nanoseconds());
}

// The limit in nanoseconds of the calls that this thread makes; 0: none; -1: the usual one.
CK_EXPORT void ck_cpu_limit(i64 nanoseconds) { limit_of_thread = nanoseconds; }

// The longest of such limits that threads have now. 0: one has none; -1: all have the usual one.
CK_EXPORT void ck_cpu_longest_limit(i64 nanoseconds) {
  __atomic_store_n(&longest_limit, nanoseconds, __ATOMIC_RELAXED);
}

CK_EXPORT void ck_cpu_usual_limit(i64 nanoseconds) {
  __atomic_store_n(&usual_limit, nanoseconds, __ATOMIC_RELAXED);
}

#endif  // COCKTAIL_RUNTIME_STOP_H
