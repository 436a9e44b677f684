#include "nccl_page.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "process.h"

namespace tw::nccl {
namespace {

const char* text_of(const char* variable, const char* otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr && *text != '\0' ? text : otherwise;
}

int number_of(const char* variable, int otherwise) {
  char* end = nullptr;
  const char* text = text_of(variable, "none");
  const long number = std::strtol(text, &end, 10);
  return *end == '\0' && number >= 0 && number <= INT_MAX ? static_cast<int>(number) : otherwise;
}

// One that is ours and that no other user may enter, made if it is not there. 0 or an errno.
int make_directory(char* path) {
  struct stat facts;
  for (char* slash = std::strchr(path + 1, '/'); slash != nullptr; slash = std::strchr(slash + 1, '/')) {
    *slash = '\0';
    mkdir(path, 0700);  // what is in the way shows below
    *slash = '/';
  }
  if (mkdir(path, 0700) != 0 && errno != EEXIST) return errno;
  if (lstat(path, &facts) != 0) return errno;
  const bool is_ours = S_ISDIR(facts.st_mode) && facts.st_uid == getuid() && (facts.st_mode & 077) == 0;
  return is_ours ? 0 : EPERM;
}

// The name of a run's directory: as tensorwire_job/page/directory.py has it, up to 100 characters of its id, odd ones
// replaced.
void append_name(char* directory, size_t room, const char* run) {
  size_t length = std::strlen(directory);
  directory[length++] = '/';
  int num_characters = 0;
  for (; *run != '\0' && length + 1 < room; ++run) {
    const auto byte = static_cast<unsigned char>(*run);
    if ((byte & 0xC0) == 0x80) continue;  // belongs to the character before
    if (++num_characters > 100) break;
    const bool is_kept = byte < 0x80 && (std::isalnum(byte) != 0 || byte == '_' || byte == '-');
    directory[length++] = is_kept ? *run : '_';
  }
  directory[length] = '\0';
}

// As the Python probe finds it: what TENSORWIRE_PROBE_DIR says, else a directory for each run.
int find_directory(const char* run, char (&directory)[PATH_MAX]) {
  if (const char* given = text_of("TENSORWIRE_PROBE_DIR", nullptr)) {
    if (std::snprintf(directory, sizeof(directory), "%s", given) >= PATH_MAX) return ENAMETOOLONG;
    return make_directory(directory);
  }
  std::snprintf(directory, sizeof(directory), "/dev/shm/tensorwire-%u", getuid());
  if (const int error = make_directory(directory)) return error;
  append_name(directory, sizeof(directory), run);
  return make_directory(directory);
}

// Whether the process that wrote a page has ended.
bool is_left_behind(const char* path) {
  probe::Page page;
  uint8_t boot_id[16];
  if (tw_probe_read_page(path, &page) != 0 || !probe::read_boot_id(boot_id)) return false;
  return std::memcmp(page.header.boot_id, boot_id, sizeof(boot_id)) != 0 ||
         probe::start_time(page.header.pid) != page.header.start_time;
}

// The launcher's id of the run; where it has none, one that its ranks share, as tensorwire_job/rank/probe.py has it: on
// several nodes the address at which they meet, on one the launcher.
const char* identify_run() {
  static char made[512];
  const char* given = text_of("TORCHELASTIC_RUN_ID", "none");
  if (std::strcmp(given, "none") != 0) return given;
  const char* address = text_of("MASTER_ADDR", nullptr);
  const char* port = text_of("MASTER_PORT", nullptr);
  if (address != nullptr && port != nullptr && number_of("WORLD_SIZE", 1) > number_of("LOCAL_WORLD_SIZE", 0)) {
    std::snprintf(made, sizeof(made), "%s:%s", address, port);
    return made;
  }
  const auto launcher = static_cast<uint32_t>(getppid());
  std::snprintf(made, sizeof(made), "run-%u-%" PRIu64, launcher, probe::start_time(launcher));
  return made;
}

}  // namespace

probe::Identity identify_process(int rank, int size) {
  probe::Identity identity;
  identity.run_id = identify_run();
  identity.rank = number_of("RANK", rank);
  identity.world_size = static_cast<uint32_t>(number_of("WORLD_SIZE", size));
  identity.restart_count = static_cast<uint32_t>(number_of("TORCHELASTIC_RESTART_COUNT", 0));
  return identity;
}

int create_page(const probe::Identity& identity, PagePaths* paths, probe::Probe** probe) {
  char directory[PATH_MAX];
  paths->page[0] = '\0';
  if (const int error = find_directory(identity.run_id, directory)) return error;
  std::snprintf(paths->control, sizeof(paths->control), "%s/control", directory);
  std::snprintf(paths->page, sizeof(paths->page), "%s/rank-%d-%u.nccl.page", directory, identity.rank,
                identity.restart_count);
  const int error = tw_probe_create(paths->page, &identity, probe);
  if (error != EEXIST || !is_left_behind(paths->page)) return error;
  unlink(paths->page);
  return tw_probe_create(paths->page, &identity, probe);
}

}  // namespace tw::nccl
