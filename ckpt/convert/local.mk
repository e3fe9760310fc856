# Writes a planned tree to a disk.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/treewrite.h \
	%D%/treeahead.h %D%/treeahead.c \
	%D%/treefile.h %D%/treefile.c \
	%D%/treewrite.c
