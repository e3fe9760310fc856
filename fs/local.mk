# ucfs: serves a source over FUSE, as any other user of the library (uckpt.h).  Rooms are in the order in which they may
# use each other (tests/lint/layers.sh).

if BUILD_FUSE
bin_PROGRAMS += ucfs
uckpt_programs += ucfs
endif
ucfs_SOURCES = %D%/detach.h %D%/detach.c \
	%D%/keeper.h %D%/keeper.c \
	%D%/mountpoint.h %D%/mountpoint.c \
	%D%/options.h %D%/options_table.c \
	%D%/options.c %D%/main.c
ucfs_LDADD = $(uckpt_libs) $(FUSE_LIBS)
ucfs_LDFLAGS = $(uckpt_ldflags)

include %D%/log/local.mk
include %D%/ops/local.mk
