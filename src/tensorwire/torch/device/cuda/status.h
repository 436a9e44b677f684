// What a kernel says of a frame: the numbers of writing/status.py.
#pragma once

enum Status : int {
  kDone = 0,
  kCorrupt = 1,
  kTruncated = 2,
  kUnsupportedVersion = 3,
  kLimitExceeded = 4,
  kAnotherTensor = 5,
  kBaseMismatch = 6,
  kHostOnly = 7
};
