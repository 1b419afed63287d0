/* What this machine offers: the cores that handles use. */
#ifndef ONEP_MACHINE_H
#define ONEP_MACHINE_H

#include <stdint.h>

/* The cores this process may use; 1 if the system does not say. */
int32_t onep_usable_cores(void);

#endif
