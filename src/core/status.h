/*
 * How a function inside the library says no: return onep_fail(status, "operator: argument: value; rule").
 * The text is kept for the calling thread and handed out by onepass_last_error; nothing is printed.
 */
#ifndef ONEP_STATUS_H
#define ONEP_STATUS_H

#include "onepass.h"

/* Records the message (cut at 511 characters) and returns the status it was given. */
onepass_status onep_fail(onepass_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
