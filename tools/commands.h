/* The commands that compute. Each returns an exit code, after having said on stderr what is wrong if it is not 0. */
#ifndef TOOL_COMMANDS_H
#define TOOL_COMMANDS_H

#include "options.h"

int command_kl(const parsed_options *options);
int command_xent(const parsed_options *options);
int command_head(const parsed_options *options);
int command_linear(const parsed_options *options);
int command_info(const parsed_options *options);
int command_check(const parsed_options *options);
int command_bench(const parsed_options *options);
int command_sweep(const parsed_options *options);
int command_demo(const parsed_options *options);

#endif
