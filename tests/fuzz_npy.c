/*
 * libFuzzer harness over the .npy reader: any bytes as a file. Whatever is accepted must keep the reader's promises,
 * which are checked here from the outside; whatever is refused must come with a reason. A header written from what was
 * read must be read back as the same.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);

static void require(int holds)
{
    if (!holds)
        abort();
}

/* The farthest element, by the strides, is the last one of the data: no element lies outside. */
static void check_reach(const npy_header *header)
{
    uint64_t last = 0, elements = 1;
    for (int d = 0; d < header->rank; d++) {
        require(header->shape[d] >= 0);
        elements *= (uint64_t)header->shape[d];
    }
    require(header->data_bytes == elements * element_infos[header->type].size);
    for (int d = 0; d < header->rank && elements > 0; d++)
        last += (uint64_t)(header->shape[d] - 1) * (uint64_t)header->strides[d];
    require(elements == 0 || last == elements - 1);
}

static void check_round_trip(const npy_header *header)
{
    npy_header written, read;
    npy_error error;
    unsigned char bytes[NPY_MAX_WRITTEN];
    char text[NPY_MAX_SHAPE_TEXT];
    require(strlen(npy_shape_text(text, header->rank, header->shape)) < sizeof text);
    require(npy_describe(&written, header->type, header->rank, header->shape));
    require(written.data_offset <= sizeof bytes && written.data_offset % 64 == 0);
    npy_write_header(&written, bytes);
    require(npy_read_header(bytes, written.data_offset, &read, &error));
    require(memcmp(&read, &written, sizeof read) == 0);
    require(read.type == header->type && read.rank == header->rank && read.data_bytes == header->data_bytes);
    require(memcmp(read.shape, header->shape, sizeof read.shape) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    npy_header header;
    npy_error error = {"\x01"};
    size_t end;
    if (!npy_read_header(bytes, count, &header, &error)) {
        require(error.text[0] > 1 && memchr(error.text, '\0', sizeof error.text));
        return 0;
    }
    require(npy_header_end(bytes, count, &end, &error) && end == header.data_offset && end <= count);
    require(header.rank >= 0 && header.rank <= NPY_MAX_RANK && header.type < ELEMENT_TYPES);
    require(header.data_offset + header.data_bytes <= INT64_MAX);
    require(npy_check_size(&header, count, &error) == (header.data_offset + header.data_bytes == count));
    check_reach(&header);
    check_round_trip(&header);
    return 0;
}
