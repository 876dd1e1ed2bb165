# Looks for programs also where the PATH of a command over ssh does not lead: genv in the home folder and in /opt, nvidia-smi
# of WSL, of systems with a fixed /usr, of containers and of NixOS.
# The comment of script.rs lists the characters that this file must not contain.
PATH=$PATH:/usr/local/bin:/usr/local/sbin:/usr/bin:/bin:$HOME/.local/bin:$HOME/bin:/opt/genv/bin:/snap/bin;
PATH=$PATH:/usr/lib/wsl/lib:/opt/bin:/opt/nvidia/bin:/usr/local/nvidia/bin:/run/current-system/sw/bin;
export PATH;
