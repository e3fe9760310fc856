/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_MODEL_H
#define UCKPT_DCP_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_metadata.h"

struct dcp_finding;
struct dcp_storage;
struct uckpt;
struct value;

/* A state of the parameters of a group. */
struct dcp_state {
	const char *name;
	bool flat;             /* has one element for each element of a parameter */
	struct dcp_entry *entry; /* if not flat: a tensor without dimensions, or NULL: */
	struct value *number;
};

struct dcp_param {
	const char *name;  /* until the model is known, perhaps a number */
	const char *known; /* recorded name for that number, or NULL */
	const struct dcp_finding *found; /* its states, as found by dcp_findings_find */
	size_t nfound;
	struct dcp_entry *weight;
	struct dcp_entry *master;  /* the weight in float32, or `weight` */
	struct dcp_entry **states; /* the flat states, by number in the group; NULL: zeros */
};

/* A group of the optimizer. */
struct dcp_group {
	struct dcp_param *params; /* in the optimizer's order; initially only names are set */
	size_t nparams, cap;
	struct dcp_state *states;
	size_t nstates;
	struct value *options; /* a dict: lr, betas, ... */
};

/* A tensor of the model that is not in the optimizer: a buffer, a frozen parameter, or another name
 * of a parameter. */
struct dcp_extra {
	const char *name;
	struct dcp_entry *entry;
	const struct dcp_param *same; /* the parameter, or NULL */
};

/* The interpretation of a checkpoint's keys. */
struct dcp_model {
	struct arena arena;
	struct dcp_group *groups;
	size_t ngroups;
	struct dcp_extra *extras;
	size_t nextras;
	int64_t step;      /* highest step; 0 if there is none */
	bool steps_differ; /* parameters of a group have different steps: the first one's is used */
	bool has_optimizer;
	struct errmsg_list notes; /* about choices and omissions, for the user */
	const char *unread;  /* a tensor of the optimizer that is not supported; or NULL */
	enum dtype weights;  /* type of the first parameter's master */
	const char *refused; /* reason why the optimizer is not read and there are no states; or
			      * NULL */
};

/* The file of Megatron-LM's checkpoints beside the metadata. */
#define DCP_MEGATRON_COMMON "common.pt"

/* The contents of that file. */
struct dcp_megatron {
	bool found;
	struct dcp_megatron_group {
		struct value *options; /* in the arena of the metadata */
		bool decays, expert;   /* kind of parameters in the group */
	} *groups; /* at least one */
	size_t ngroups;
	bool told;          /* the rule determines the group of every parameter */
	bool qk_decays;     /* layer norms of queries and keys decay, too */
	int64_t step;       /* step of the optimizer */
	int64_t iteration;
	const char *unread; /* key of a tensor of the optimizer that is not a parameter's state,
	                     * such as a bucket; or NULL */
};

/* Return the group of a parameter by Megatron-Core's rule (optimizer/__init__.py), since its
 * files do not record it. */
size_t dcp_megatron_group(const struct dcp_megatron *x, const char *name, unsigned ndim);

/*
 * If the directory is one of Megatron-LM's (torch_dist), give the entries of its metadata
 * the paths that get_state_dict would give them, with a parameter for each layer of a stack.
 * -ENOTSUP for a record with several layers; otherwise errors as ptfile_open_source.
 */
int dcp_megatron_find(struct dcp_megatron *x, struct dcp_metadata *m, struct uckpt *u,
		      const char *dir, struct errmsg *err);

/* Count the parameters of all groups. */
size_t dcp_model_count(const struct dcp_model *o);

/*
 * Find the model and its optimizer among the entries of a checkpoint.  Without an optimizer,
 * all real tensors are parameters of one group, with states of zeros, or without states if a ZeRO
 * checkpoint cannot represent the optimizer's.  -ENOTSUP if there is no model; -EBADMSG; errors of
 * dcp_storage_value.  Messages begin with `dir`.
 */
int dcp_model_find(struct dcp_model *o, const struct dcp_metadata *m,
		   const struct dcp_megatron *megatron, struct dcp_storage *b, const char *dir,
		   struct errmsg *err);
void dcp_model_done(struct dcp_model *o);

#endif
