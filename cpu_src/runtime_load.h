// The compiled programs of the process: each is loaded once, and unloaded after its last use.
#ifndef COCKTAIL_RUNTIME_LOAD_H
#define COCKTAIL_RUNTIME_LOAD_H

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime_features.h"
#include "runtime_routines.h"
#include "runtime_units.h"

namespace {

// A program stays loaded while the state of a call holds it. XLA deletes a state with its executable, when no
// call runs. The last few that lost their last state stay a while longer: often they come back.
struct Program {
  char digest[65];  // of the binary
  Entry entry;
  int64_t calls, exits;  // of a program with an exit flag: all calls, and those that left by a side exit
  void* library;
  CkRoutine* routines;  // that it calls; nullptr: none
  int64_t states;
  Program* next;
};

const int kBuckets = 1024, kMostIdle = 8;
Program* programs[kBuckets];
Program* idle_programs[kMostIdle];  // a ring; null: came back
unsigned next_idle = 0;
pthread_mutex_t programs_mutex = PTHREAD_MUTEX_INITIALIZER;
int64_t load_count = 0, loaded_now = 0;
char* cache_folder = nullptr;  // no other user can write to it

bool WriteAll(int fd, const uint8_t* data, size_t size) {
  while (size > 0) {
    ssize_t written = write(fd, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    size -= size_t(written);
  }
  return true;
}

// The dynamic loader takes two libraries of one path for the same, and file descriptors are reused, also by
// another copy of this library in the process. So the path spells the number of the file in binary ("./" or
// ".//"), which names the same file. No other file gets this number while the library is loaded.
void* OpenFromMemory(const uint8_t* data, size_t size, char* problem, size_t problem_size) {
  int fd = memfd_create("jax_cocktail", MFD_CLOEXEC);
  struct stat status;
  if (fd < 0 || fstat(fd, &status) != 0) {
    snprintf(problem, problem_size, "memfd_create: %s", strerror(errno));
    return nullptr;
  }
  void* library = nullptr;
  if (WriteAll(fd, data, size)) {
    char path[256];
    size_t end = size_t(snprintf(path, sizeof(path), "/proc/self/fd/"));
    for (uint64_t number = status.st_ino; number > 0; number >>= 1) {
      end += size_t(snprintf(path + end, sizeof(path) - end, number & 1 ? ".//" : "./"));
    }
    snprintf(path + end, sizeof(path) - end, "%d", fd);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) snprintf(problem, problem_size, "%s", dlerror());
  } else {
    snprintf(problem, problem_size, "write: %s", strerror(errno));
  }
  close(fd);
  return library;
}

void* OpenFromFile(const char* folder, const uint8_t* data, size_t size, char* problem, size_t problem_size) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/jax_cocktail_%d_%lld_XXXXXX", folder, int(getpid()),
           static_cast<long long>(load_count));
  int fd = mkstemp(path);
  if (fd < 0) {
    snprintf(problem, problem_size, "mkstemp: %s", strerror(errno));
    return nullptr;
  }
  void* library = nullptr;
  bool written = WriteAll(fd, data, size);
  if (!written) snprintf(problem, problem_size, "write: %s", strerror(errno));
  close(fd);
  if (written) {
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) snprintf(problem, problem_size, "%s", dlerror());
  }
  unlink(path);
  return library;
}

// From memory, else from TMPDIR, else from the cache folder: one of them may allow execution.
void* OpenLibrary(const uint8_t* data, size_t size, char* problem, size_t problem_size) {
  char memory[320] = "", temporary[320] = "", cached[320] = "no cache folder";
  void* library = OpenFromMemory(data, size, memory, sizeof(memory));
  if (library != nullptr) return library;
  const char* folder = getenv("TMPDIR");
  library = OpenFromFile(folder && *folder ? folder : "/tmp", data, size, temporary, sizeof(temporary));
  if (library == nullptr && cache_folder != nullptr) {
    library = OpenFromFile(cache_folder, data, size, cached, sizeof(cached));
  }
  if (library == nullptr) {
    snprintf(problem, problem_size, "the program cannot be loaded (%s; %s; %s)", memory, temporary, cached);
  }
  return library;
}

// The caller holds the mutex. On failure `problem` is the reason.
Program* LoadProgram(const char* digest, const uint8_t* data, size_t size, Origin origin, char* problem,
                     size_t problem_size) {
  ++load_count;
  void* library = OpenLibrary(data, size, problem, problem_size);
  if (library == nullptr) return nullptr;
  auto* features = static_cast<const char*>(dlsym(library, "ck_features"));
  char lacking[600] = "";
  if (LacksFeatures(features ? features : "unknown", origin, lacking, sizeof(lacking))) {
    snprintf(problem, problem_size,
             "the program was compiled for another processor: this one lacks, or is not known to have, %s; "
             "compile it again here",
             lacking);
    dlclose(library);
    return nullptr;
  }
  auto* version = static_cast<const u32*>(dlsym(library, "ck_units_version"));
  if (version != nullptr && *version != CK_UNITS_VERSION) {
    snprintf(problem, problem_size,
             "the program was compiled for another version of jax_cocktail (units %u, here %u); "
             "compile it again",
             *version, u32(CK_UNITS_VERSION));
    dlclose(library);
    return nullptr;
  }
  auto* function = reinterpret_cast<ProgramFunction*>(dlsym(library, "ck_program"));
  auto* program = static_cast<Program*>(calloc(1, sizeof(Program)));
  if (function == nullptr || program == nullptr) {
    snprintf(problem, problem_size, function ? "out of memory" : "the program has no entry point ck_program");
    free(program);
    dlclose(library);
    return nullptr;
  }
  memcpy(program->digest, digest, 64);
  program->library = library;
  program->routines = static_cast<CkRoutine*>(dlsym(library, "ck_routines"));
  auto* most_units = static_cast<const i64*>(dlsym(library, "ck_most_units"));
  program->entry = Entry{function, most_units ? *most_units : 1, 0, 0};
  return program;
}

// A fork during a load would leave the child with a mutex that is never released.
void LockPrograms() { pthread_mutex_lock(&programs_mutex); }
void UnlockPrograms() { pthread_mutex_unlock(&programs_mutex); }
void WatchForks() { pthread_atfork(LockPrograms, UnlockPrograms, UnlockPrograms); }
pthread_once_t watch_forks_once = PTHREAD_ONCE_INIT;

int64_t Locked(const int64_t* count) {
  LockPrograms();
  int64_t found = *count;
  UnlockPrograms();
  return found;
}

// The list that holds the program with this digest, if it is loaded.
Program** BucketOf(const char* digest) {
  unsigned hash = 0;
  for (int i = 0; i < 16; ++i) hash = hash * 31 + static_cast<unsigned char>(digest[i]);
  return &programs[hash % kBuckets];
}

// The loaded program with this digest, or nullptr. The caller holds the mutex.
Program* LoadedProgram(const char* digest) {
  Program* program = *BucketOf(digest);
  while (program != nullptr && memcmp(program->digest, digest, 64) != 0) program = program->next;
  return program;
}

// The number of side exits so far of the program with this digest, and in `calls` that of its calls.
int64_t CountExits(const char* digest, int64_t* calls) {
  int64_t exits = 0;
  *calls = 0;
  LockPrograms();
  const Program* program = LoadedProgram(digest);
  if (program != nullptr) {
    *calls = __atomic_load_n(&program->calls, __ATOMIC_RELAXED);
    exits = __atomic_load_n(&program->exits, __ATOMIC_RELAXED);
  }
  UnlockPrograms();
  return exits;
}

// Ends the use of a program by one state.
void ReleaseProgram(Program* program) {
  Program* expired = nullptr;
  LockPrograms();
  if (--program->states == 0) {
    Program*& idle = idle_programs[next_idle++ % kMostIdle];
    expired = idle;
    idle = program;
  }
  if (expired != nullptr) {
    Program** place = BucketOf(expired->digest);
    while (*place != expired) place = &(*place)->next;
    *place = expired->next;
    --loaded_now;
  }
  UnlockPrograms();
  if (expired == nullptr) return;
  dlclose(expired->library);
  free(expired);
}

// The program with this digest, for one more state; loads it if it is new. nullptr on failure: `problem` is
// the reason.
Program* FindProgram(const char* digest, const uint8_t* data, size_t size, Origin origin, char* problem,
                     size_t problem_size) {
  pthread_once(&watch_forks_once, WatchForks);
  Program** bucket = BucketOf(digest);
  LockPrograms();
  Program* program = LoadedProgram(digest);
  if (program == nullptr) {
    program = LoadProgram(digest, data, size, origin, problem, problem_size);
    if (program != nullptr) {
      program->next = *bucket;
      *bucket = program;
      ++loaded_now;
    }
  } else if (program->states == 0) {
    for (Program*& idle : idle_programs) {
      if (idle == program) idle = nullptr;
    }
  }
  if (program != nullptr) ++program->states;
  UnlockPrograms();
  const char* missing = program == nullptr ? nullptr : FindRoutines(program->routines);
  if (missing == nullptr) return program;
  snprintf(problem, problem_size, "the program calls %s of LAPACK, which SciPy does not have here", missing);
  ReleaseProgram(program);
  return nullptr;
}

}  // namespace

#endif  // COCKTAIL_RUNTIME_LOAD_H
