/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SLOTS_H
#define UCKPT_SLOTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "ckpt/views/view.h"

struct errmsg;
struct tag;

/*
 * The slots of a mount: one of each type for each tag directory that has been looked up or listed.
 * Adding a slot is cheap; its view is made on first use and kept, but only the last few views for a
 * number of ranks are.  The slots of a tag share the checkpoint that was read from its files.
 * Thread-safe.
 */
struct slots;

/* Numbers of slots (tree_impl.h has the bits).  Slots for a number of ranks (TAG_dpN, for which
 * a stage may follow, and TAG_dcpN) exist once they are looked up, up to 5 * RECUT_RANKS_MAX for
 * each tag; SLOTS_RANKED_MAX leaves numbers for the others. */
#define SLOTS_MAX ((1u << 21) - 1)
#define SLOTS_RANKED_MAX (96u * 5 * 4096)

/* Limit of unused views of slots for a number of ranks that are kept. */
#define SLOTS_RANKED_VIEWS_MAX 8

/* A slot is valid until slots_free. */
struct slot {
	/* Immutable: */
	struct slots *slots;
	const char *path; /* path of its tag */
	struct view_type type;
	uint64_t parent; /* inode of the directory that lists the tag */
	size_t number;   /* below SLOTS_MAX */
	struct tag *tag;
	struct slot *next; /* slot of the tag; the last one is the universal one */
	/* Private to slots.c.  Written with the locks of the tag and of the list held,
	 * read with either of them: */
	struct view *view; /* immutable while the slot has users */
	bool made;         /* a view was made */
	time_t tried;
	int rc; /* result of the last attempt */
	struct errmsg *why;
	atomic_bool warned; /* the slot's warnings were printed */
	/* Protected by the lock of the list: */
	unsigned users;
	uint64_t last_use;
};

/* With `check`, a view requires that all files of its tag are readable and belong together, else
 * only the files that it uses.  Returns NULL when memory runs out. */
struct slots *slots_new(struct uckpt *u, const struct view_options *options, bool check);
void slots_free(struct slots *v);

/* Pass detect()'s listing of the only tag, before other threads exist; NULL discards it. */
void slots_listed(struct slots *v, enum dir_kind kind, const struct dirlist *names);

/* Find or add a slot of the tag at `path` (copied), listed in the directory
 * with inode `parent`.  0, -ENOMEM, or -ENFILE after SLOTS_MAX slots, or
 * SLOTS_RANKED_MAX for a number of ranks. */
int slots_add(struct slots *v, const char *path, const struct view_type *type,
	      uint64_t parent, struct slot **out);

/* Are the files of the tag at `path` still the planned ones?  The result is cached for `moment`
 * seconds, or until another thread has checked.  If the tag was saved again, its slots are
 * retired, so that slots_add adds new ones.  False also for a tag without a view. */
bool slots_is_there(struct slots *v, const char *path, double moment);

/* Get the slot of a number, or NULL. */
struct slot *slots_get(struct slots *v, size_t number);

/* Return the universal slot of the same tag. */
struct slot *slot_universal(struct slot *x);

/*
 * Get the view of a slot, making it on first use, and use it until slot_put.
 * Warnings of the view are logged once.  A failure is retried after a second, since the tag may
 * still be being written; until then the same error is returned.  -ESTALE, without a message, for a
 * slot that was retired a while ago, or before its view was made.
 */
int slot_view(struct slot *x, struct view **out, struct errmsg *err);
void slot_put(struct slot *x);

/* Schedule a check whether the tag was saved again; for use after a failed open. */
void slot_recheck(struct slot *x);

/* The state of a slot, with the reason of a failure in *why.  A refused slot fails until the tag
 * is saved again; other slots of the tag may not. */
enum slot_state { SLOT_NEW, SLOT_MADE, SLOT_FAILED, SLOT_REFUSED, SLOT_RETIRED };
enum slot_state slot_state(struct slot *x, struct errmsg *why);

/* Is the slot listed?  False if it is retired or refused, or re-cut without a view. */
bool slot_is_listed(struct slot *x);

/* Has the tag never been used, and its directory not been written to since the mount began? The
 * newest tag is tried when mounting; the others are listed untested, and read when they are
 * used. */
bool slot_is_untouched(struct slot *x);

/* Should a directory list the slot?  Makes its view; false if that fails or its tag is being saved.
 * Call slots_is_there before. */
bool slot_may_list(struct slot *x);

/* After a failed view: is the tag readable, so that other slots may be possible? */
bool slot_has_others(struct slot *x);

#endif
