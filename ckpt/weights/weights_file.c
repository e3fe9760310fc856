/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lays out and opens model.safetensors and pytorch_model.bin.
 *
 * pytorch_model.bin is the torch.save of a dict.  Each tensor has a storage of
 * its own, exactly as long as the tensor.  In the script's file the tensors of
 * stages 1 and 2 are views of a whole group, and those of stage 3 are followed
 * by the padding of the ranks' parts.
 */
#include "ckpt/weights/weights_file.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptwrite.h"
#include "ckpt/format/safetensors_write.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/pickle/value.h"
#include "ckpt/vfile/gather.h"

bool weights_file_parse_dtype(const char *text, enum dtype *out)
{
	static const struct {
		const char *name;
		enum dtype dtype;
	} types[] = {
		{ "fp32", DTYPE_F32 },
		{ "bf16", DTYPE_BF16 },
		{ "fp16", DTYPE_F16 },
	};

	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
		if (strcmp(text, types[i].name) == 0) {
			*out = types[i].dtype;
			return true;
		}
	return false;
}

static bool is_float(enum dtype d)
{
	return d == DTYPE_F64 || d == DTYPE_F32 || d == DTYPE_F16 ||
	       d == DTYPE_BF16 || d == DTYPE_F8_E4M3 || d == DTYPE_F8_E5M2;
}

enum dtype weights_file_dtype(const struct weights_file_set *s, size_t weight)
{
	const enum dtype own = s->w->v[weight]->dtype;

	return is_float(own) ? s->dtype : own;
}

uint64_t weights_file_bytes(const struct weights_file_set *s, size_t weight)
{
	return s->w->v[weight]->numel *
	       dtype_size(weights_file_dtype(s, weight));
}

/* --- safetensors ---------------------------------------------------------------- */

static int init_safetensors(struct weights_file *f,
			    const struct weights_file_set *s, struct errmsg *err)
{
	struct safetensors_write_tensor *const v = calloc(f->n + 1, sizeof(*v));
	int rc;

	f->order = calloc(f->n + 1, sizeof(*f->order));
	if (!v || !f->order) {
		free(v);
		return errmsg_nomem(err, f->stem);
	}
	for (size_t i = 0; i < f->n; i++) {
		const struct weight *const x = s->w->v[f->tensors[i]];

		v[i] = (struct safetensors_write_tensor){
			x->name, weights_file_dtype(s, f->tensors[i]), x->ndim,
			x->shape, x->numel
		};
	}
	rc = safetensors_write_header(v, f->n, f->order, &f->head, err);
	free(v);
	return rc;
}

/* --- torch.save ------------------------------------------------------------------- */

/* Return the place in the file of the tensor that owns tensor i's storage: `i`
 * itself, or the tensor it is tied to, which the split puts before it. */
static size_t find_twin(const struct weights_file *f,
			const struct weights_file_set *s, const size_t *place,
			size_t i)
{
	const size_t same = s->w->v[f->tensors[i]]->same;

	assert(same <= f->tensors[i] && place[same] <= i);
	return same == f->tensors[i] ? i : place[same];
}

static struct value *tensor_value(struct arena *a, const struct weight *x,
				  enum dtype dtype, size_t storage)
{
	char key[24];
	struct tensor t;

	tensor_init(&t, dtype, x->shape, x->ndim, x->requires_grad);
	snprintf(key, sizeof(key), "%zu", storage);
	t.storage_key = arena_strdup(a, key);
	return t.storage_key ? tensor_to_value(a, &t) : NULL;
}

/* Build the dict to pickle and fill in the lengths of its storages. */
static struct value *make_dict(struct arena *a, const struct weights_file *f,
			       const struct weights_file_set *s, size_t *place,
			       uint64_t *len, size_t *nstorages)
{
	struct value *const dict = value_new(a, VALUE_DICT);
	struct value **const values =
		arena_alloc(a, (f->n + 1) * sizeof(struct value *));
	bool ok = dict && values;

	for (size_t i = 0; ok && i < f->n; i++) {
		const size_t number = f->tensors[i];
		const size_t twin = find_twin(f, s, place, i);

		place[number] = i;
		if (twin == i) {
			values[i] = tensor_value(a, s->w->v[number],
						 weights_file_dtype(s, number),
						 *nstorages);
			len[(*nstorages)++] = weights_file_bytes(s, number);
		} else {
			values[i] = values[twin];
		}
		ok = values[i] &&
		     value_dict_set(a, dict, s->w->v[number]->name, values[i]);
	}
	return ok ? dict : NULL;
}

/* Lay out the torch.save file. */
static int weights_file_lay_out(const struct weights_file *f,
				const struct weights_file_set *s,
				struct ptwrite *w, struct errmsg *err)
{
	size_t *const place = calloc(s->w->n + 1, sizeof(*place));
	uint64_t *const len = calloc(f->n + 1, sizeof(*len));
	struct pickle_storages storages = { 0 };
	struct bytebuf pickle = { 0 };
	struct arena a = { 0 };
	struct value *dict = NULL;
	size_t n = 0;
	int rc;

	if (place && len)
		dict = make_dict(&a, f, s, place, len, &n);
	rc = dict ? pickle_dump(dict, &pickle, &storages, err)
		  : errmsg_nomem(err, f->stem);
	if (!rc)
		rc = ptwrite_init(w, f->stem, &pickle, len, n, err);
	pickle_storages_done(&storages);
	bytebuf_done(&pickle);
	arena_done(&a);
	free(place);
	free(len);
	return rc;
}

/* --- either ------------------------------------------------------------------------- */

int weights_file_init(struct weights_file *f, const struct weights_file_set *s,
		      struct errmsg *err)
{
	struct ptwrite w;
	int rc;

	if (s->safetensors) {
		rc = init_safetensors(f, s, err);
		f->size = f->head.len;
		for (size_t i = 0; i < f->n; i++)
			f->size += weights_file_bytes(s, f->tensors[i]);
		return rc;
	}
	f->crc = calloc(f->n + 1, sizeof(*f->crc));
	if (!f->crc)
		return errmsg_nomem(err, f->stem);
	rc = weights_file_lay_out(f, s, &w, err);
	if (rc)
		return rc;
	f->size = w.size;
	ptwrite_done(&w);
	return 0;
}

void weights_file_done(struct weights_file *f)
{
	bytebuf_done(&f->head);
	free(f->order);
	free(f->crc);
}

struct opening {
	struct extent_map *maps; /* of the storages */
	size_t n;
	struct gathers gathers;
};

/* Map the storages in the order of the file. */
static int add_maps(const struct weights_file *f,
		    const struct weights_file_set *s, struct opening *o,
		    struct errmsg *err)
{
	int rc = 0;

	o->maps = calloc(f->n + 1, sizeof(*o->maps));
	if (!o->maps)
		return errmsg_nomem(err, f->stem);
	for (size_t i = 0; !rc && i < f->n; i++) {
		const size_t number = f->tensors[f->order ? f->order[i] : i];

		if (s->w->v[number]->same == number)
			rc = weights_add(s->w, number, s->r,
					 weights_file_dtype(s, number),
					 &o->maps[o->n++], &o->gathers, err);
	}
	return rc;
}

static int open_safetensors(struct weights_file *f,
			    const struct weights_file_set *s, struct opening *o,
			    struct vfile **out, struct errmsg *err)
{
	struct bytebuf head = { 0 };

	bytebuf_add(&head, f->head.data, f->head.len);
	*out = head.failed ? NULL
			   : vfile_new_tensors(s->shards, &head, o->maps, o->n,
					       &o->gathers, err);
	bytebuf_done(&head);
	return *out ? 0 : errmsg_nomem(err, f->stem);
}

static int open_pt(struct weights_file *f, const struct weights_file_set *s,
		   bool sums, struct opening *o, struct vfile **out,
		   struct errmsg *err)
{
	struct ptwrite w;
	const int rc = weights_file_lay_out(f, s, &w, err);

	if (rc)
		return rc;
	*out = vfile_new_pt(s->shards, &w, o->maps, &o->gathers,
			    sums ? f->crc : NULL, err);
	ptwrite_done(&w);
	return *out ? 0 : errmsg_nomem(err, f->stem);
}

int weights_file_open(struct weights_file *f, const struct weights_file_set *s,
		      bool sums, struct vfile **out, struct errmsg *err)
{
	struct opening o = { 0 };
	int rc = add_maps(f, s, &o, err);

	if (!rc)
		rc = s->safetensors ? open_safetensors(f, s, &o, out, err)
				    : open_pt(f, s, sums, &o, out, err);
	for (size_t i = 0; i < o.n; i++)
		extent_done(&o.maps[i]);
	free(o.maps);
	gathers_done(&o.gathers);
	return rc;
}
