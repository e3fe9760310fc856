# Files by path, wherever they lie: on this machine or on servers, in directories or in
# packs, in one directory or in several shown as one.
# Uses base, sys, remote and pack.
ckpt_libuckpt_a_SOURCES += \
	%D%/io.h \
	%D%/roots.h %D%/roots.c \
	%D%/io.c
