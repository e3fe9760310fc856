/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SERIALIZATION_ID_H
#define UCKPT_SERIALIZATION_ID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* boost's hash_combine, as c10/util/hash.h has it. */
static inline uint64_t serialization_id_combine(uint64_t seed, uint64_t value)
{
	return seed ^ (value + 0x9e3779b9u + (seed << 6) + (seed >> 2));
}

/*
 * The record-name half of a torch serialization id for a file with `n`
 * storages: the names of all records but the id, hashed in the order in which
 * the writer's std::unordered_set<std::string> iterates.  False when memory
 * runs out.
 */
bool serialization_id(size_t nstorages, uint64_t *out);

#endif
