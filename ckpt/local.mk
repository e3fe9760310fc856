# Understands checkpoints; knows nothing of FUSE or GPUs.  Rooms are in the order
# in which they may use each other: a file includes only what stands above it,
# here and in its room's list, and calls no room below its own
# (tests/lint/layers.sh).

noinst_LIBRARIES += %D%/libuckpt.a
%C%_libuckpt_a_SOURCES = %D%/uckpt.h
# Each needs the other.
ckpt_archives = %D%/libuckpt.a $(ckpt_transport) %D%/libuckpt.a
ckpt_static_archives = %D%/libuckpt.a %D%/remote/libucnocurl.a
ckpt_libs = $(ckpt_archives) \
	$(CJSON_LIBS) $(ZLIB_LIBS) $(ISAL_LIBS) $(ZSTD_LIBS) $(XXHASH_LIBS) \
	$(PCRE2_LIBS) $(NETTLE_LIBS) -lm

bin_PROGRAMS += ucckpt
ucckpt_SOURCES = %D%/main.c
ucckpt_LDADD = $(ckpt_libs)

include %D%/base/local.mk
include %D%/sys/local.mk
include %D%/cache/local.mk
include %D%/remote/local.mk
include %D%/pickle/local.mk
include %D%/tensor/local.mk
include %D%/pack/local.mk
include %D%/files/local.mk
include %D%/format/local.mk
include %D%/dirs/local.mk
include %D%/vfile/local.mk
include %D%/model/local.mk
include %D%/zero/local.mk
include %D%/weights/local.mk
include %D%/reshard/local.mk
include %D%/plan/local.mk
include %D%/tree/local.mk
include %D%/convert/local.mk
include %D%/cmd/local.mk
include %D%/check/local.mk
include %D%/diff/local.mk
include %D%/packing/local.mk
