/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocates memory, writes to it and frees it, so that the next program gets memory that has just
 * been in use.
 *
 *   settle MIB
 *
 * A virtual machine may tell its host which pages are free (free page reporting), and the host
 * takes them away within seconds.  The first write to such a page takes up to 40 times as long as
 * one to a page that the machine still has.  Without this program, a measurement would depend on
 * how much memory was freed just before it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

int main(int argc, char **argv)
{
	const size_t size = (argc == 2 ? strtoul(argv[1], NULL, 10) : 0) << 20;
	char *memory;

	if (!size) {
		fprintf(stderr, "usage: settle MIB\n");
		return 2;
	}
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		      -1, 0);
	if (memory == MAP_FAILED) {
		perror("memory");
		return 1;
	}
	/* Huge pages are freed whole, not split. */
	madvise(memory, size, MADV_HUGEPAGE);
	for (size_t i = 0; i < size; i += 4096)
		memory[i] = 1;
	return 0;
}
