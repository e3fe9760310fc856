/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_MODULE_ENTRIES_H
#define UCKPT_MODULE_ENTRIES_H

#include <stdbool.h>
#include <stddef.h>

struct arena;
struct value;
struct value_dict;

/* The kind of a name in a module's state dict, or of one that model states only list. */
struct module_entry {
	const char *name; /* must be first: array_by_text */
	bool buffer;      /* also for the result of get_extra_state() */
	const char *same; /* for a further name of a parameter: the name that DeepSpeed saves */
};

struct module_entries {
	struct module_entry *v; /* sorted by name */
	size_t n;
};

/* Find the kinds of the entries of `module` (may be NULL): from the lists in the object of model
 * states, and from the places of tensors.  When memory runs out, there are no entries, and
 * a->failed is set. */
void module_entries_init(struct module_entries *e, struct arena *a, const struct value *root,
			 const struct value_dict *module);
const struct module_entry *module_entries_find(const struct module_entries *e, const char *name);
bool module_entries_is_buffer(const struct module_entries *e, const char *name);

#endif
