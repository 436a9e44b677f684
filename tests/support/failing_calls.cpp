// Calls of the C library that change files, one of which fails. LD_PRELOAD puts them before the C library's own.
//
// Only calls on paths below a directory count. The one that fails has done nothing, but for close, which has closed:
// as the kernel has it.

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

namespace {

char root[PATH_MAX];
char failed[PATH_MAX + 64];
std::atomic<long> num_calls{0};
std::atomic<long> at{-1};

bool in_root(const char* path) { return root[0] != 0 && std::strncmp(path, root, std::strlen(root)) == 0; }

// The path of a descriptor or directory, with `name` behind it if that is relative.
void resolve(int directory, const char* name, char* out) {
  if (name != nullptr && name[0] == '/') {
    std::snprintf(out, PATH_MAX, "%s", name);
    return;
  }
  char link[64];
  std::snprintf(link, sizeof link, directory == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", directory);
  const ssize_t length = readlink(link, out, PATH_MAX - 1);
  out[length < 0 ? 0 : length] = 0;
  if (name != nullptr) {
    const size_t used = std::strlen(out);
    std::snprintf(out + used, PATH_MAX - used, "/%s", name);
  }
}

bool fails(const char* call, int directory, const char* name) {
  char path[PATH_MAX];
  resolve(directory, name, path);
  if (!in_root(path) || num_calls.fetch_add(1) != at.load()) return false;
  std::snprintf(failed, sizeof failed, "%s %s", call, path + std::strlen(root));
  errno = EIO;
  return true;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

void failing_calls_begin(const char* directory, long number) {
  std::snprintf(root, sizeof root, "%s", directory);
  failed[0] = 0;
  num_calls = 0;
  at = number;
}

long failing_calls_count() { return num_calls; }

const char* failing_calls_failed() { return failed; }

#define ON_DESCRIPTOR(result, name, parameters, arguments)    \
  result name parameters {                                    \
    static auto* const real = next<result parameters>(#name); \
    return fails(#name, fd, nullptr) ? -1 : real arguments;   \
  }
#define ON_PATH(name, parameters, arguments, directory, path)   \
  int name parameters {                                         \
    static auto* const real = next<int parameters>(#name);      \
    return fails(#name, directory, path) ? -1 : real arguments; \
  }

ON_DESCRIPTOR(ssize_t, write, (int fd, const void* data, size_t count), (fd, data, count))
ON_DESCRIPTOR(ssize_t, pwrite, (int fd, const void* data, size_t count, off_t offset), (fd, data, count, offset))
ON_DESCRIPTOR(ssize_t, pwrite64, (int fd, const void* data, size_t count, off64_t offset), (fd, data, count, offset))
ON_DESCRIPTOR(int, ftruncate, (int fd, off_t length), (fd, length))
ON_DESCRIPTOR(int, ftruncate64, (int fd, off64_t length), (fd, length))
ON_DESCRIPTOR(int, fsync, (int fd), (fd))
ON_DESCRIPTOR(int, fdatasync, (int fd), (fd))
ON_PATH(mkdir, (const char* path, mode_t mode), (path, mode), AT_FDCWD, path)
ON_PATH(unlink, (const char* path), (path), AT_FDCWD, path)
ON_PATH(rmdir, (const char* path), (path), AT_FDCWD, path)
ON_PATH(unlinkat, (int fd, const char* path, int flags), (fd, path, flags), fd, path)
ON_PATH(link, (const char* path, const char* other), (path, other), AT_FDCWD, other)
ON_PATH(linkat, (int a, const char* path, int b, const char* other, int flags), (a, path, b, other, flags), b, other)
ON_PATH(rename, (const char* path, const char* other), (path, other), AT_FDCWD, other)
ON_PATH(renameat, (int a, const char* path, int b, const char* other), (a, path, b, other), b, other)
ON_PATH(renameat2, (int a, const char* path, int b, const char* other, unsigned flags), (a, path, b, other, flags), b,
        other)

int close(int fd) {
  static auto* const real = next<int(int)>("close");
  const bool failing = fails("close", fd, nullptr);
  const int result = real(fd);
  if (!failing) return result;
  errno = EIO;
  return -1;
}

}  // extern "C"
