/* Feeds files to world.c, without libFuzzer: what the suite does with the corpus. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#undef main   /* by which the core's own got another name */

int main(int count, char **names)
{
    for (int i = 1; i < count; i++) {
        FILE *file = fopen(names[i], "rb");
        if (!file || fseek(file, 0, SEEK_END) < 0)
            return perror(names[i]), 2;
        size_t size = (size_t)ftell(file);
        uint8_t *data = malloc(size + !size);   /* of its own, so that what is read past its end is noticed */
        rewind(file);
        if (!data || fread(data, 1, size, file) < size)
            return perror(names[i]), 2;
        fclose(file);
        LLVMFuzzerTestOneInput(data, size);
        free(data);
    }
    return 0;
}
