# Files by path, wherever they lie: on this machine or on servers, in directories or in
# packs, in one directory or in several shown as one; open shards, and contexts.
# Uses the rooms up to pack.
ckpt_libuckpt_a_SOURCES += \
	%D%/io.h \
	%D%/roots.h %D%/roots.c \
	%D%/io.c \
	%D%/shards.h %D%/shards_impl.h %D%/shards.c %D%/shards_check.c
