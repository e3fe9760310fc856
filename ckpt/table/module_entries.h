/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_MODULE_ENTRIES_H
#define UCKPT_MODULE_ENTRIES_H

#include <stdbool.h>
#include <stddef.h>

struct arena;
struct value;
struct value_dict;

/* What a name in a module's state dict is; or one that model states list, but have not. */
struct module_entry {
	const char *name; /* first: array_by_text */
	bool buffer;      /* or what get_extra_state() returned */
	const char *same; /* of a further name of a parameter: the one that DeepSpeed saves */
};

struct module_entries {
	struct module_entry *v; /* sorted by name */
	size_t n;
};

/* Find what the entries of `module` (may be NULL) are: what the object of model states lists,
 * and what it does not list but tells by the places of tensors.  When memory runs out, which the
 * arena remembers, there are none. */
void module_entries_init(struct module_entries *e, struct arena *a, const struct value *root,
			 const struct value_dict *module);
const struct module_entry *module_entries_find(const struct module_entries *e, const char *name);
bool module_entries_is_buffer(const struct module_entries *e, const char *name);

#endif
