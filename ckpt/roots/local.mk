# Several directories shown as one, and the files in them, packed or not.
# Uses base, remote and pack.
ckpt_libuckpt_a_SOURCES += \
	%D%/roots.h %D%/roots.c \
	%D%/rootfs.h %D%/rootfs.c
