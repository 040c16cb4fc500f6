{{- define "cloister.labels" -}}
app.kubernetes.io/name: cloister
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cloister.drain" -}}
{{- int (default 30 (get .Values.settings "drain")) -}}
{{- end }}

{{- /* Of each container: no privilege, no file of the image can change. */ -}}
{{- define "cloister.container" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "cloister.pod" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
{{- end }}
