dist_man1_MANS = \
	%D%/ucckpt.1 \
	%D%/ucplot.1
dist_man3_MANS = %D%/uckpt.3
dist_man5_MANS = %D%/ucpack.5
if BUILD_FUSE
dist_man1_MANS += %D%/ucfs.1
dist_man7_MANS = %D%/ucfs-deploy.7
dist_man8_MANS = %D%/mount.ucfs.8
endif
if BUILD_TRAIN
dist_man1_MANS += %D%/uctrain.1
endif
# Of a build without them, too.
EXTRA_DIST += %D%/ucfs.1 %D%/ucfs-deploy.7 %D%/mount.ucfs.8 %D%/uctrain.1
