# nuclr in a container.
#
#   docker build --tag nuclr .
#   docker run --rm --volume "$PWD:/work" nuclr train --config=glyphs --workdir=runs/demo
#
# On NVIDIA GPUs, with the container toolkit of NVIDIA:
#
#   docker build --build-arg EXTRAS=cuda12 --tag nuclr:gpu .
#   docker run --rm --gpus all --volume "$PWD:/work" nuclr:gpu doctor
#
# The folder /work has your files and runs, and /data prepared data sets: keep it
# with --volume nuclr_data:/data. Runs belong to you, and not to root, with
# --user "$(id --user):$(id --group)". EXTRAS are those of pyproject.toml, such as
# cuda12,icons,gs.
FROM debian:trixie-slim
ARG EXTRAS=""
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN python3 -m venv /opt/nuclr \
 && /opt/nuclr/bin/pip install --no-cache-dir "/source${EXTRAS:+[$EXTRAS]}"
ENV PATH=/opt/nuclr/bin:$PATH NUCLR_DATA_DIR=/data HOME=/tmp
RUN mkdir --mode=777 /data /work
WORKDIR /work
ENTRYPOINT ["nuclr"]
CMD ["--help"]
