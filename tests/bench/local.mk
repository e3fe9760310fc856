# What `make bench` measures with: training steps and where their time goes on a
# GPU, conversions, and what any FUSE server can do.
if BUILD_TRAIN
noinst_PROGRAMS += %D%/trainstep %D%/gpuops
endif
%C%_gpuops_LDADD = $(train_libs)
%C%_trainstep_SOURCES = %D%/trainstep.c $(whole)
%C%_trainstep_LDADD = $(train_libs)
%C%_trainstep_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=dnnl_sgemm
%C%_trainstep_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)

noinst_PROGRAMS += %D%/cast %D%/packread %D%/dcpmetadata
%C%_cast_LDADD = $(ckpt_libs)
%C%_packread_LDADD = $(ckpt_libs)
%C%_dcpmetadata_LDADD = $(ckpt_libs)

if BUILD_FUSE
noinst_PROGRAMS += %D%/bare %D%/slowfs
endif
%C%_bare_SOURCES = %D%/bare.c fs/ops/fuse_caps.c fs/ops/passthrough.c
%C%_bare_LDADD = $(FUSE_LIBS)
%C%_slowfs_SOURCES = %D%/slowfs.c fs/ops/fuse_caps.c
%C%_slowfs_LDADD = $(FUSE_LIBS)

# Named one by one: of a directory, what was built there would be packed, too.
EXTRA_DIST += %D%/RESULTS.md %D%/cast.sh %D%/cold.sh %D%/convert.sh %D%/copy.sh \
	%D%/cost.sh %D%/dcp.sh %D%/dcp_load.py %D%/dimensions.sh %D%/dsuc.sh %D%/far.sh %D%/far_load.py %D%/first_tensor.sh \
	%D%/gather.sh %D%/gpu.sh \
	%D%/gpustep.py %D%/large.sh %D%/lib.sh %D%/listing.sh \
	%D%/machine.sh %D%/mount.sh %D%/pack.sh %D%/packsizes.sh %D%/ranks.sh \
	%D%/pieces.c %D%/python.py %D%/python.sh %D%/readers.c %D%/readfile.c %D%/reading.sh \
	%D%/recut.sh %D%/resume.py %D%/resume.sh %D%/run %D%/scratch.sh %D%/scale.sh %D%/settle.c %D%/stream.sh \
	%D%/train.sh %D%/trainstep.py \
	%D%/tree_load.py %D%/tree_load.sh %D%/usage.c %D%/views.sh
