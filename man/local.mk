dist_man1_MANS = \
	%D%/ucfs.1 \
	%D%/ucckpt.1 \
	%D%/ucplot.1
if BUILD_TRAIN
dist_man1_MANS += %D%/uctrain.1
endif
