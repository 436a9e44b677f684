// Pages and the control page as other processes see them.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "page.h"
#include "seqlock.h"

namespace tw::probe {
namespace {

// A page of a file, mapped; nothing else than a plain file of one page is.
class MappedPage {
 public:
  explicit MappedPage(const char* path, bool writable = false) {
    const int access = writable ? O_RDWR | O_CREAT : O_RDONLY;
    file_ = open(path, access | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (file_ < 0) {
      error_ = errno;
      return;
    }
    if (writable && flock(file_, LOCK_EX) != 0) error_ = errno;
    struct stat facts;
    if (error_ == 0 && fstat(file_, &facts) != 0) error_ = errno;
    if (error_ == 0 && writable && S_ISREG(facts.st_mode) && facts.st_size == 0) {
      error_ = posix_fallocate(file_, 0, kPageNbytes);
      facts.st_size = kPageNbytes;
    }
    if (error_ == 0 && (!S_ISREG(facts.st_mode) || facts.st_size != kPageNbytes)) error_ = EINVAL;
    if (error_ != 0) return;
    page_ = mmap(nullptr, kPageNbytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file_, 0);
    if (page_ == MAP_FAILED) error_ = errno;
  }
  ~MappedPage() {
    if (page_ != MAP_FAILED) munmap(page_, kPageNbytes);
    if (file_ >= 0) close(file_);
  }
  MappedPage(const MappedPage&) = delete;
  MappedPage& operator=(const MappedPage&) = delete;

  int error() const { return error_; }
  template <class T>
  T* as() const {
    static_assert(sizeof(T) == kPageNbytes);
    return static_cast<T*>(page_);
  }

 private:
  int file_ = -1;
  int error_ = 0;
  void* page_ = MAP_FAILED;
};

// Copies `T`, whose first 16 bytes are magic, layout and lock.
template <class T>
void copy_locked(T* to, const T* from) {
  const uint32_t lock = read_consistent(&from->lock, [&] { copy_from_shared(to, from, sizeof(T)); });
  to->lock = lock;
}

// Slots refer to names of the header, and those of groups that are no more are written over: so all slots have to be of
// one header. It changes a few times a second at most.
bool copy_page(Page* to, const Page* from) {
  constexpr int kAttempts = 100;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const uint32_t before = __atomic_load_n(&from->header.lock, __ATOMIC_ACQUIRE);
    copy_locked(&to->header, &from->header);
    for (size_t i = 0; i < kNumSlots; ++i) copy_locked(&to->slots[i], &from->slots[i]);
    if (__atomic_load_n(&from->header.lock, __ATOMIC_RELAXED) == before) return true;
  }
  return false;
}

}  // namespace
}  // namespace tw::probe

using namespace tw::probe;

int tw_probe_read_page(const char* path, Page* page) {
  const MappedPage mapped(path);
  if (mapped.error() != 0) return mapped.error();
  const Page* shared = mapped.as<const Page>();
  if (__atomic_load_n(&shared->header.magic, __ATOMIC_ACQUIRE) != kPageMagic) return EINVAL;
  if (!copy_page(page, shared)) return EAGAIN;
  return page->header.layout == kLayout ? 0 : EPROTO;
}

int tw_probe_read_control(const char* path, Control* control) {
  const MappedPage page(path);
  if (page.error() != 0) return page.error();
  copy_locked(control, page.as<const Control>());
  if (control->magic != kControlMagic || (control->lock & 1) != 0) return EAGAIN;
  if (control->num_entries > kNumControlEntries || control->num_rounds > UINT16_MAX) return EINVAL;
  return control->layout == kLayout ? 0 : EPROTO;
}

int tw_probe_write_control(const char* path, const ControlEntry* entries, uint32_t num_entries, uint32_t num_rounds,
                           uint32_t* number) {
  if (num_entries > kNumControlEntries || num_rounds > UINT16_MAX) return EINVAL;
  const MappedPage page(path, true);
  if (page.error() != 0) return page.error();
  Control* shared = page.as<Control>();
  Control control{};
  control.magic = kControlMagic;
  control.layout = kLayout;
  control.number = *number = shared->number + 1;
  control.num_rounds = num_rounds;
  control.num_entries = num_entries;
  control.servers = shared->servers;
  if (num_entries != 0) std::memcpy(control.entries, entries, num_entries * sizeof(ControlEntry));

  const WriteLock lock(&shared->lock);
  copy_to_shared(&shared->magic, &control.magic, offsetof(Control, lock));
  copy_to_shared(&shared->number, &control.number, sizeof(Control) - offsetof(Control, number));
  return 0;
}

int tw_probe_request_servers(const char* path) {
  const MappedPage page(path, true);
  if (page.error() != 0) return page.error();
  Control* shared = page.as<Control>();
  const WriteLock lock(&shared->lock);
  store_shared(&shared->magic, kControlMagic);
  store_shared(&shared->layout, kLayout);
  store_shared(&shared->servers, 1U);
  return 0;
}
