/* What processor and operating system allow, whatever was built. */
#ifndef ONEP_DETECT_H
#define ONEP_DETECT_H

#include "core/level.h"

int onep_cpu_has(onep_level level);

#endif
