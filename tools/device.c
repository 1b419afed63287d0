/* Devices on the command line and in JSON. See device.h. */
#include "device.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"

const char *const device_levels[DEVICE_LEVELS] = {"ref", "scalar", "avx2", "avx512", "neon"};

int device_option(const parsed_options *options, onepass_device *device)
{
    const char *text = options_text(options, "device");
    *device = (onepass_device){ONEPASS_CPU, 0};
    if (strcmp(text, "cpu") == 0) {
        if (options_given(options, "fp32-products"))
            return message_error(EXIT_USAGE, "--fp32-products with --device cpu; it is for a GPU, on the CPU an fp32 "
                                             "product is an fp32 product");
        return 0;
    }
    const char *number = strncmp(text, "cuda:", 5) == 0 ? text + 5 : strcmp(text, "cuda") == 0 ? "0" : "";
    if (!*number || number[strspn(number, "0123456789")])
        return message_error(EXIT_USAGE, "--device: \"%s\" is not a device; it must be cpu or cuda[:N]", text);
    static const char *const for_cpu[] = {"threads", "isa"};
    for (int i = 0; i < 2; i++)
        if (options_given(options, for_cpu[i]))
            return message_error(EXIT_USAGE, "--%s with --device %s; it is for the CPU", for_cpu[i], text);
    unsigned long id = strtoul(number, NULL, 10);
    *device = (onepass_device){ONEPASS_CUDA, id > INT32_MAX ? INT32_MAX : (int32_t)id};
    return 0;
}

int device_input_threads(const onepass_handle *handle)
{
    onepass_handle *cpu = NULL;
    int threads = (int)onepass_threads(handle);
    if (threads == 0 && onepass_create(NULL, &cpu) == ONEPASS_OK)
        threads = (int)onepass_threads(cpu);
    onepass_destroy(cpu);
    return threads > 0 ? threads : 1;
}

void device_print_json(json_writer *json, onepass_handle *handle, const parsed_options *options)
{
    char library[400];
    json_string(json, "device", options_text(options, "device"));
    json_string(json, "isa", onepass_isa(handle));
    if (onepass_device_of(handle).type == ONEPASS_CUDA) {
        onepass_describe_blas(handle, library, sizeof library);
        json_string(json, "products", library);
        json_string(json, "fp32_products", options_text(options, "fp32-products"));
    } else {
        json_string(json, "blas", onepass_blas(handle));
    }
    json_integer(json, "threads", onepass_threads(handle));
}
